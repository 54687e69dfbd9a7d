"""Where a loaded model runs in fact, held against where it was asked to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kbench.core import AUTO, INJECTED, Device, OpCall, Phase, Placement
from kbench.engine import Session
from kbench.kernels import implementation

from .gpu import TRITON


def realised(session: Session) -> dict[str, dict[str, int]]:
    """Calls of one step by ``"<device> <implementation>"``, for each phase."""
    return {
        phase.value: dict(Counter(f"{call.device} {call.implementation}" for call in calls if call.op != "transfer"))
        for phase, calls in _programs(session)
    }


def fallbacks(session: Session) -> list[str]:
    """Every matrix product, and whatever else reads weights, that runs elsewhere or on something else than its module
    was asked to, in words. Empty is what a measurement needs: a number under the wrong name is worse than none.

    What has no weights goes to the best kernel where the named one, made for matrices, has none: that is no fallback.
    """
    found = [f"{name} needs a GPU, {other} stood in for it" for name, other in session.report.stand_ins.items()]
    for phase, call, asked, device in _elsewhere(session):
        if call.device != device or not _has_no_kernel(asked, call):
            ran = f"{call.implementation} on {call.device} ran"
            found.append(f"{call.module} ({phase}): {asked} on {device} was asked for, {ran}")
    return found


def replaced(session: Session) -> list[str]:
    """What the kernels that were asked for do not do, so that others on the same GPU do it, in words."""
    calls = [(asked, call) for _, call, asked, device in _elsewhere(session) if call.device == device]
    told = (
        f"{asked} has no {call.op}: {call.implementation} ran" for asked, call in calls if _has_no_kernel(asked, call)
    )
    return list(dict.fromkeys(told))


def _elsewhere(session: Session) -> Iterator[tuple[Phase, OpCall, str, Device]]:
    """Calls with weights that are not where, or on what, their module was asked to run: with that."""
    for phase, calls in _programs(session):
        for call in calls:
            if call.weights and call.op not in ("transfer", INJECTED, "rms_norm"):
                placement: Any = session.report.assignment.get(call.module, Placement())
                asked, device = placement.implementation(phase), placement.device(phase)
                part = placement.gpu_experts
                if part is not None and call.attrs.get("experts") == part.experts:
                    asked, device = part.op, part.device
                if call.device != device or asked not in (AUTO, call.implementation):
                    yield phase, call, asked, device


def _has_no_kernel(asked: str, call: OpCall) -> bool:
    """Whether the engine gives ``call`` to torch because ``asked``, a GPU's kernels, does not do it."""
    return asked == TRITON and not implementation(TRITON).supports(call.problem).ok


def _programs(session: Session) -> Iterator[tuple[Phase, tuple[OpCall, ...]]]:
    yield Phase.PREFILL, session.prefill_calls
    yield Phase.DECODE, session.decode_calls
