"""Moves values to where they are needed: the last step of lowering."""

from __future__ import annotations

from collections.abc import Mapping

from kbench.core import Device, OpCall, Problem, Value

from .draft import Draft

# Not an implementation of the registry: whoever runs the calls copies between his own buffers.
COPY = "copy"


def insert_transfers(draft: Draft, deliver: Mapping[str, Device] | None = None) -> tuple[OpCall, ...]:
    """``draft``'s calls with a ``transfer`` wherever a call reads a value on a device where it is not yet.

    A value is moved to a device once, whoever reads it there. A module with an ``out_device`` has its result moved
    there at once; its result is what it makes for others, not what it reads itself. The moved value ``v`` is called
    ``v@device``; the call that moves it runs on the device that receives. ``deliver`` names values that somebody
    outside wants on a device.
    """
    readers: dict[str, set[str]] = {}
    for call in draft.calls:
        for name in call.inputs:
            readers.setdefault(name, set()).add(call.module)
    made: dict[str, tuple[Value, Device]] = {}
    moved: dict[tuple[str, Device], str] = {}
    calls: list[OpCall] = []

    def at(name: str, device: Device, module: str) -> str:
        if name not in made:  # $tokens: the ids are known to every device
            return name
        value, home = made[name]
        if home == device:
            return name
        key = (name, device)
        if key not in moved:
            moved[key] = f"{name}@{device}"
            rows = 1 if value.rows == "one" else draft.tokens
            problem = Problem.make("transfer", d=value.width, src=str(home), dst=str(device), tokens=rows)
            output = Value(moved[key], value.width, value.rows, value.dtype)
            calls.append(OpCall("transfer", problem, COPY, device, module, (name,), (output,)))
        return moved[key]

    for call in draft.calls:
        inputs = tuple(at(name, call.device, call.module) for name in call.inputs)
        calls.append(
            call
            if inputs == call.inputs
            else OpCall(
                call.op,
                call.problem,
                call.implementation,
                call.device,
                call.module,
                inputs,
                call.outputs,
                call.weights,
                call.attrs,
                call.threads,
                call.block,
            )
        )
        placement = draft.assignment.get(call.module)
        for value in call.outputs:
            made[value.name] = (value, call.device)
            if placement and placement.out_device and readers.get(value.name, set()) != {call.module}:
                at(value.name, placement.out_device, call.module)
            if deliver and value.name in deliver:
                at(value.name, deliver[value.name], call.module)
    return tuple(calls)
