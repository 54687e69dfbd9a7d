"""``transfer_map``: the devices that the hidden state moves to from layer to layer, and what follows it there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kbench.core import AUTO, Device, Placement

from .implementations import OPS
from .schema import Rule

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
# Behind the last layer: they read the hidden state where that left it.
_LAST = re.compile(r"(?:^|\.)(?:norm|lm_head)$")


def layer_of(module: str) -> int | None:
    """The number of the layer that ``module`` is, or is part of."""
    match = _LAYER.search(module)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class TransferMap:
    """``devices``: layer -> the device that the hidden state moves to there, to stay until the next of them; ``rule``:
    the one that says so. Without entries the map says nothing.

    KTransformers moves the hidden state and nothing else, so that a module without a rule stays on ``cuda:0`` and the
    first token fails there. Here such a module of a layer runs where the hidden state is, and so do the norm and the
    head behind the last layer. What a rule puts elsewhere stays there.
    """

    devices: Mapping[int, Device]
    rule: Rule | None = None

    @property
    def line(self) -> int | None:
        return None if self.rule is None else self.rule.line_of("replace.kwargs.transfer_map")

    def device(self, module: str) -> Device | None:
        """Where the hidden state is when ``module`` reads it; None: before the first entry, or in no layer."""
        layer = layer_of(module)
        if layer is None:
            passed = list(self.devices) if _LAST.search(module) else []
        else:
            passed = [first for first in self.devices if first <= layer]
        return self.devices[max(passed)] if passed else None

    def default(self, module: str, default: Placement) -> Placement:
        """``default`` for ``module``, on the hidden state's device; with ``auto`` where its op does not run there."""
        device = self.device(module)
        if device is None:
            return default
        changes: dict[str, Any] = {"generate_device": device, "prefill_device": device}
        for key in ("generate_op", "prefill_op"):
            op = OPS.get(getattr(default, key))
            if op is not None and op.kind not in ("", device.kind):
                changes[key] = AUTO
        return replace(default, **changes)
