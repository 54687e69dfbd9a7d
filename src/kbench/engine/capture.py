"""Which calls of a decode step a CUDA graph can hold, the CPU's among them as host functions."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from kbench.core import AUTO, CPU, INJECTED, Assignment, Device, OpCall, Phase, Problem, UserError
from kbench.kernels import YES, Support, implementation, planned_on_gpu
from kbench.model import ModelDescriptor, lower
from kbench.rules import Uncaptured

# Any context: only shapes depend on it.
_CONTEXT = 1024


def capturable(call: OpCall) -> Support:
    """Whether a graph can hold ``call``, which runs on a GPU or, awaited by it, on the CPU."""
    if call.op == "transfer" or call.implementation == AUTO:
        return YES
    if call.op == INJECTED:
        return Support(False, "an operator of somebody's own runs in Python")
    if call.device.kind == "cpu" and not call.implementation.startswith("cpu."):
        return Support(False, f"{call.implementation} runs in Python on the CPU")
    try:
        item = implementation(call.implementation)
    except UserError:  # a peer's kernels, which are not here: believed
        return YES
    return item.capturable(call.problem)


def uncaptured(calls: Iterable[OpCall]) -> list[Uncaptured]:
    """Those of ``calls`` that keep them from being one graph; none where no GPU takes part."""
    calls = list(calls)
    n_calls = sum(call.device.kind != "cpu" and call.op != "transfer" for call in calls)
    if not n_calls:
        return []
    found = []
    for call in calls:
        verdict = capturable(call)
        if not verdict.ok:
            found.append(
                Uncaptured(call.module, call.op, call.implementation, call.device, verdict.reason, n_calls)
            )  # fmt: skip
    return found


def planned_uncaptured(descriptor: ModelDescriptor, assignment: Assignment) -> list[Uncaptured]:
    """``uncaptured`` of a model's decode step, on whatever machine; none where it cannot be lowered, which is for
    other checks to tell."""
    try:
        return uncaptured(
            lower(descriptor, assignment, Phase.DECODE, 1, _CONTEXT, deliver=CPU, resolve=_planned)
        )  # fmt: skip
    except UserError:
        return []


@functools.lru_cache(maxsize=512)
def _planned(problem: Problem, device: Device) -> str:
    if device.kind == "cpu":
        return "torch" if problem.op == "expert_map" else AUTO  # which is native, wherever there is a kernel
    return planned_on_gpu(problem)
