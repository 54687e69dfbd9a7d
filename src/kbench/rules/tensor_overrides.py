"""llama.cpp's ``-ot PATTERN=BUFFER``: tensors that go elsewhere than their layer, by regular expressions on names.

There the first pattern that is found anywhere in a name wins (``std::regex_search``), and a pattern that finds nothing
is not complained about. Patterns here are whole names between ``^`` and ``$`` and exclude each other, so their order
does not matter; each is tried on every tensor before it is handed out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbench.core import CheckBroken

from .fold import either, number_regex, split_number

# Longer ones cannot be read, and one layer's tensors always fit.
_MAX_PATTERN = 600


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Tensors whose name ``pattern`` finds lie in ``buffer``: ``CPU``, ``CUDA0``."""

    pattern: str
    buffer: str

    def __str__(self) -> str:
        return f"{self.pattern}={self.buffer}"


def tensor_overrides(buffers: Mapping[str, str], others: Iterable[str]) -> list[TensorOverride]:
    """As few as say that each tensor of ``buffers`` lies in its buffer, and nothing about any of ``others``.

    Raises:
        CheckBroken: tried on all these names, they say something else.
    """
    layers: dict[tuple[str, str, str], set[int]] = {}
    plain: dict[str, list[str]] = {}
    for name, buffer in buffers.items():
        head, number, tail = split_number(name)
        if number is None:
            plain.setdefault(buffer, []).append(name)
        else:
            layers.setdefault((buffer, head, tail), set()).add(number)
    merged: dict[tuple[str, str, frozenset[int]], list[str]] = {}
    for (buffer, head, tail), numbers in layers.items():
        merged.setdefault((buffer, head, frozenset(numbers)), []).append(tail)
    found = []
    for (buffer, head, same), tails in merged.items():
        start = f"^{re.escape(head)}{number_regex(same)}"
        found += [TensorOverride(f"{start}{either(part)}$", buffer) for part in _parts(start, tails)]
    found += [TensorOverride(f"^{either(names)}$", buffer) for buffer, names in plain.items()]
    for name in (*buffers, *others):
        if buffer_of(name, found) != buffers.get(name):
            raise CheckBroken(f"{name} goes to {buffer_of(name, found)}, not {buffers.get(name)}", where="-ot")
    return found


def buffer_of(name: str, overrides: Sequence[TensorOverride]) -> str | None:
    """The buffer that ``overrides`` send the tensor to; None: they say nothing about it."""
    return next((one.buffer for one in overrides if re.search(one.pattern, name)), None)


def _parts(start: str, tails: Sequence[str]) -> Iterable[list[str]]:
    """``tails`` in lists whose pattern stays readable."""
    part: list[str] = []
    for tail in tails:
        if part and len(start) + len(either([*part, tail])) > _MAX_PATTERN:
            yield part
            part = []
        part.append(tail)
    yield part
