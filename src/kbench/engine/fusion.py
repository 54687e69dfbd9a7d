"""A residual's sum and the norm that the next block reads of it: two calls that a device may do with one kernel.

    add       x, y -> sum   }   one launch where the device has it:   x, y -> sum, normed
    rms_norm  sum  -> normed }

Calls stay as they were lowered, so they are priced, traced and profiled as two: what is fused is how a step does them.
The kernel reads ``x`` and ``y`` while it writes ``normed``, which a norm of its own may put where they lay: so values
are laid out as if one call made both (``as_laid_out``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kbench.core import OpCall
from kbench.kernels import ResidualNorm, Spans, TorchDevice, on_tensors

from .devices import DeviceMap
from .schedule import Item
from .space import Slot, TokenArray


def pairs(calls: Sequence[OpCall], devices: DeviceMap) -> dict[int, int]:
    """By the place of an ``add`` in ``calls`` the place of the norm that is done with it: the next thing that its
    device computes. Transfers may lie between: the norm needs nothing that they bring."""
    found = {}
    for index, call in enumerate(calls):
        if call.op != "add":
            continue
        later = range(index + 1, len(calls))
        after = next((i for i in later if calls[i].device == call.device and calls[i].op != "transfer"), None)
        if after is not None and _fused(call, calls[after], devices):
            found[index] = after
    return found


def _fused(add: OpCall, norm: OpCall, devices: DeviceMap) -> bool:
    if norm.op != "rms_norm" or add.implementation != norm.implementation:
        return False
    (total,), (normed,), d = add.outputs, norm.outputs, norm.problem.integer("d")
    whole = total.width == d == norm.attrs.get("row_width", d) and total.rows == normed.rows
    item = device_of(add, devices) if whole and norm.inputs == (total.name,) else None
    return item is not None and item.residual_norm(norm) is not None


def device_of(call: OpCall, devices: DeviceMap) -> TorchDevice | None:
    """What runs ``call`` on tensors of its device; None: it takes and returns arrays in host memory, or runs in another
    process."""
    if not devices.is_local(call.device) or not devices.has_own_queue(call.device):
        return None
    return on_tensors(call.implementation, str(devices.physical(call.device)))


def side_by_side(items: Sequence[Item], devices: DeviceMap) -> list[Item]:
    """``items`` with every such norm right behind its sum."""
    found = pairs([item.call for item in items], devices)
    norms = set(found.values())
    ordered = []
    for index, item in enumerate(items):
        if index not in norms:
            ordered.append(item)
        if index in found:
            ordered.append(items[found[index]])
    return ordered


def as_laid_out(calls: Sequence[OpCall], devices: DeviceMap) -> list[OpCall]:
    """``calls`` as ``plan_arena`` is to see them: a sum's call makes the norm too, apart from what it reads."""
    seen = list(calls)
    for add, norm in pairs(calls, devices).items():
        seen[add] = dataclasses.replace(calls[add], outputs=(*calls[add].outputs, *calls[norm].outputs))
        seen[norm] = dataclasses.replace(calls[norm], outputs=())
    return seen


class FusedCall:
    """A sum and its norm by one kernel, which writes both to where they lie."""

    def __init__(
        self, add: OpCall, norm: OpCall, slots: Mapping[str, Slot], kernel: ResidualNorm, weights: Any
    ) -> None:
        """``weights``: the norm's, prepared."""
        names = (*add.inputs, add.outputs[0].name, norm.outputs[0].name)
        self._kernel, self._weights = kernel, weights
        self._slots = [slots[name] for name in names]

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        x, y, total, normed = (slot.tensor(len(tokens)) for slot in self._slots)
        self._kernel(self._weights, x, y, total, normed)


class _Step(Protocol):
    def run(self, tokens: TokenArray, spans: Spans) -> None: ...

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]: ...


class OneOrTwo:
    """A sum and its norm: a step that does both at once, or for seconds of each two, one after the other."""

    def __init__(self, one: Any, two: Sequence[_Step]) -> None:
        """``one`` has to ``run`` only."""
        self._one, self._two = one, tuple(two)

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        self._one.run(tokens, spans)

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]:
        return [seconds for step in self._two for seconds in step.profile(tokens, spans)]
