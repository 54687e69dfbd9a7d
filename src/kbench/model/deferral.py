"""Experts of the CPU that are added one layer later: an approximation, by which a GPU need not wait for them.

A layer's routed experts see the layer's hidden state as ever; what they make is added where the next layer with such
experts adds its own, so that it is made while the GPU is at that layer's attention. The last layer adds its own too::

    exact      x1 = x0 + shared1 + routed1     x2 = x1 + shared2 + routed2     x3 = x2 + shared3 + routed3
    deferred   x1 = x0 + shared1               x2 = x1 + shared2 + routed1     x3 = x2 + shared3 + routed2 + routed3

(attention left out). What that costs in accuracy is for ``scripts/deferral_cost.py`` to tell of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kbench.core import CPU, OpCall, Value


def deferred(calls: Sequence[OpCall]) -> list[OpCall]:
    """``calls`` of a step, before transfers, with the CPU's routed experts deferred; unchanged where fewer than two
    layers have any."""
    routed = [call.outputs[0].name for call in calls if call.op == "moe_experts" and call.device.kind == CPU.kind]
    if len(routed) < 2:
        return list(calls)
    late = dict(zip(routed[1:], routed, strict=False))
    renamed: dict[str, str] = {}
    # A sum that has lost its first term, with what it still is: resolved at the layer's own sum.
    weighed: dict[str, OpCall] = {}
    found: list[OpCall] = []
    for call in calls:
        call = replace(call, inputs=tuple(renamed.get(name, name) for name in call.inputs))
        own = next((name for name in call.inputs if name in routed), None)
        made = call.outputs[0] if call.outputs else None
        if call.op == "add" and call.inputs[1] in weighed:
            # x + (nothing + w * shared) = x + w * shared
            gated = weighed.pop(call.inputs[1])
            found.append(replace(gated, inputs=(call.inputs[0], *gated.inputs[1:]), outputs=call.outputs))
        elif own is None or made is None:
            found.append(call)
        elif own == routed[0]:
            if call.op == "add":
                renamed[made.name] = next(name for name in call.inputs if name != own)
            else:
                weighed[made.name] = call
        elif own == routed[-1]:
            both = Value(f"{own}.deferred", made.width, made.rows)
            found.append(_sum_like(calls, call, (late[own], own), both))
            found.append(_with(call, own, both.name))
        else:
            found.append(_with(call, own, late[own]))
    return found


def _with(call: OpCall, name: str, other: str) -> OpCall:
    return replace(call, inputs=tuple(other if given == name else given for given in call.inputs))


def _sum_like(calls: Sequence[OpCall], call: OpCall, inputs: tuple[str, ...], output: Value) -> OpCall:
    """A sum on the device of ``call``, as another sum of the model there is done, if there is one."""
    sums = [one for one in calls if one.op == "add"]
    model = next((one for one in sums if one.device == call.device), sums[0])
    return replace(model, device=call.device, module=call.module, inputs=inputs, outputs=(output,))
