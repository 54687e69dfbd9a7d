"""How long a list of calls takes when each device works through its own calls in program order.

A call starts when its device is free and its inputs are there. A value that lies elsewhere is copied over the link
first; each direction of the link is a queue of its own. This is the fork-join model of heterogeneous decoding: routed
experts on the CPU run beside the shared experts on the GPU, and the sum joins them:

    cpu   ........[ routed experts ].......
    gpu   [router][ shared ]........[ add ]      T = serial + crossings + max(cpu side, gpu side)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kbench.core import Device, OpCall


@dataclass(frozen=True, slots=True)
class Step:
    """One call reduced to what timing needs: where, how long, what it reads and writes.

    ``crossing`` is set for an explicit ``transfer`` call: it occupies the link from the first to the second device.
    """

    device: Device
    seconds: float
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    crossing: tuple[Device, Device] | None = None


TransferSeconds = Callable[[str, Device, Device], float]


def makespan(
    steps: Sequence[Step], transfer_seconds: TransferSeconds, present: Mapping[str, Device] | None = None
) -> float:
    """Seconds from the start until every step is done.

    ``present`` names values that exist at time zero, with the device that holds them. Inputs that start with ``$`` are
    the engine's own state and lie everywhere. ``transfer_seconds(value, src, dst)`` prices implicit copies.
    """
    ready: dict[tuple[str, Device], float] = {}
    home: dict[str, Device] = {}
    for name, device in (present or {}).items():
        home[name], ready[name, device] = device, 0.0
    free: dict[object, float] = {}
    end = 0.0
    for step in steps:
        start = free.get(step.crossing or step.device, 0.0)
        source = step.crossing[0] if step.crossing else step.device
        for name in step.inputs:
            if name.startswith("$"):
                continue
            if (name, source) not in ready:
                link = (home[name], source)
                arrival = max(ready[name, home[name]], free.get(link, 0.0)) + transfer_seconds(name, *link)
                ready[name, source] = free[link] = arrival
            start = max(start, ready[name, source])
        finish = start + step.seconds
        free[step.crossing or step.device] = finish
        for name in step.outputs:
            home[name], ready[name, step.device] = step.device, finish
        end = max(end, finish)
    return end


def steps_of(calls: Sequence[OpCall], seconds: Callable[[OpCall], float]) -> list[Step]:
    """The steps of a lowered model, its ``transfer`` calls as crossings."""
    steps = []
    for call in calls:
        crossing = None
        if call.op == "transfer":
            crossing = (Device.parse(call.problem.text("src")), Device.parse(call.problem.text("dst")))
        outputs = tuple(value.name for value in call.outputs)
        steps.append(Step(call.device, seconds(call), call.inputs, outputs, crossing))
    return steps
