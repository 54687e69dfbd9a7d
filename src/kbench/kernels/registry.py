"""Which implementations there are, and which is the best one for a problem."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

from kbench.core import CPU, Device, OpCall, Problem, Unsupported, UserError, did_you_mean

from .implementation import AnyArray, Implementation, Prepared, StepState, Support, WeightData
from .reference import ReferenceImplementation
from .torch_baseline import TorchImplementation

# Native kernels from the most to the least capable instruction set, then plain torch, then the definition.
RANKING = ("cpu.avx512_vnni", "cpu.avx2", "cpu.scalar", "torch", "reference")


class MissingNative:
    """Stands for a native implementation that this installation does not have, so that it can be listed."""

    device_kind = "cpu"

    def __init__(self, name: str, reason: str) -> None:
        self.name, self._reason = name, reason
        self.summary = f"native kernels, {name.partition('.')[2]}"

    def runnable(self) -> Support:
        return Support(False, self._reason)

    def supports(self, problem: Problem) -> Support:
        return Support(False, self._reason)

    def prepare(self, problem: Problem, weights: Sequence[WeightData]) -> Prepared:
        raise Unsupported(f"{self.name}: {self._reason}")

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        raise Unsupported(f"{self.name}: {self._reason}")


def _native() -> tuple[Implementation, ...]:
    """What ``kbench.kernels.cpu.implementations()`` offers; stand-ins when the extension cannot be imported."""
    try:
        found: tuple[Implementation, ...] = tuple(importlib.import_module(".cpu", __package__).implementations())
    except (ImportError, AttributeError) as error:  # AttributeError: a source tree without the built package
        reason = f"extension not built ({error})"
        return tuple(MissingNative(name, reason) for name in RANKING if name.startswith("cpu."))
    return found


@functools.lru_cache(maxsize=1)
def implementations() -> tuple[Implementation, ...]:
    """Every implementation, best first, whether or not it can run here."""
    found: list[Implementation] = [*_native(), TorchImplementation(), ReferenceImplementation()]
    rank = {name: position for position, name in enumerate(RANKING)}
    return tuple(sorted(found, key=lambda item: rank.get(item.name, len(rank))))


def implementation(name: str) -> Implementation:
    """The implementation called ``name``.

    Raises:
        UserError: there is none of that name.
    """
    by_name = {item.name: item for item in implementations()}
    if name not in by_name:
        raise UserError(
            f"unknown implementation {name!r}", accepted=", ".join(by_name), todo=did_you_mean(name, by_name)
        )
    return by_name[name]


def support(item: Implementation, problem: Problem, device: Device = CPU) -> Support:
    """Whether ``item`` can run ``problem`` on ``device`` of this machine, and why not."""
    if item.device_kind != device.kind:
        return Support(False, f"runs on {item.device_kind}, not on {device}")
    runnable = item.runnable()
    return item.supports(problem) if runnable.ok else runnable


def candidates(problem: Problem, device: Device = CPU) -> tuple[tuple[Implementation, Support], ...]:
    """Every implementation with whether it can run ``problem`` on ``device``, and why not; best first."""
    return tuple((item, support(item, problem, device)) for item in implementations())


@functools.lru_cache(maxsize=4096)
def best(problem: Problem, device: Device = CPU) -> str:
    """Name of the highest-ranked implementation that can run ``problem`` on ``device``.

    Raises:
        Unsupported: none can; the message has everyone's reason.
    """
    reasons = []
    for item in implementations():
        verdict = support(item, problem, device)
        if verdict.ok:
            return item.name
        reasons.append(f"{item.name}: {verdict.reason}")
    raise Unsupported(f"nothing runs {problem.key} on {device}", accepted="; ".join(reasons))
