"""Layer-wise prefill: a long prompt goes through one layer after another, whose weights are there only meanwhile.

For rules whose prefill runs elsewhere than decode (experts of a CPU, prefilled by a GPU too small for all of them):
what decode needs stays; of the rest, one layer at a time is read from the file, used on the whole prompt, and dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kbench.kernels import Spans

from .executor import Executable, Step
from .schedule import COMPUTE, Item
from .space import TokenArray
from .traffic import WEIGHTS

# Tokens of one step: every step brings in the weights of every layer, and more tokens share them.
LAYERWISE_CHUNK = 4096

_LAYER = re.compile(r"model\.layers\.(\d+)")


def by_layer(items: Iterable[Item]) -> list[list[Item]]:
    """``items`` in stretches of one layer each; what lies in no layer is grouped by its module."""
    groups: list[list[Item]] = []
    layer = ""
    for item in items:
        found = _LAYER.match(item.call.module)
        name = found[1] if found else item.call.module
        if name != layer or not groups:
            groups.append([])
            layer = name
        groups[-1].append(item)
    return groups


class LayerwiseExecutable(Executable):
    """An ``Executable`` that binds, runs and forgets layer by layer; weights that are there already stay."""

    def _bound(self, items: Iterable[Item]) -> list[Step]:
        self._groups = by_layer(items)
        return []

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        self._begin_step(tokens, spans)
        for group in self._groups:
            brought = self._weights.missing(item.call for item in group if item.what == COMPUTE)
            try:
                self._weights.prepare(brought)
                for call in brought:
                    if call.weights:
                        self._machine.traffic.add(WEIGHTS, "file", call.device, self._weights.of(call).n_bytes)
                for step in super()._bound(group):
                    step.run(tokens, spans)
                self._machine.drain()
            finally:  # after Ctrl-C, too: what is found there would stay for good
                self._weights.release(brought)
