"""Measures a suite's ladder: each rung in alternation with the one that it is compared with, as one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kbench.core import CheckBroken, Problem
from kbench.kernels import best, implementation, kernel_version, op_spec, support
from kbench.measure import Interval, Pairs, TimeBudget, Warmup, host, is_cold, measure, measure_pairs
from kbench.results import Record, Store

from .cell import Cell
from .copies import first_example, pack_copies, touched_bytes, variants
from .engine_case import MAX_THREADS_WORD
from .failure import failure_of
from .rungs import Rung
from .schema import AUTO_WORD, Suite
from .shrink import MAX_COPY_BYTES, weight_bytes
from .verify import verify
from .workload import Workload, ready

# A rung without a partner is only timed: to know its size, not to judge it.
_ALONE = TimeBudget(0.3, min_samples=3)
# Sides kept between rungs: a rung's partner is mostly the rung before, and a side's copies take up to a gigabyte.
_KEPT_SIDES = 2

Progress = Callable[[int, int, str], None]


class _CannotRun(Exception):
    """Why an implementation cannot run a problem here."""


@dataclass(frozen=True, slots=True)
class _Side:
    """An implementation with its weights, checked and ready."""

    workload: Workload
    cold: bool


def threads_of(suite: Suite) -> int:
    """The one thread count of a ladder."""
    (word,) = suite.threads
    return host().usable_cpus if word == MAX_THREADS_WORD else int(word)


def resolve(step: str, problem: Problem) -> str:
    """The implementation's name; ``auto`` is the best that runs."""
    return best(problem) if step == AUTO_WORD else implementation(step).name


def run_ladder(
    rungs: Sequence[Rung],
    threads: int,
    store: Store | None,
    *,
    progress: Progress | None = None,
    pairs: Callable[[Callable[[], object], Callable[[], object]], Pairs] = measure_pairs,
    suite: str = "local",
) -> list[Record]:
    """One record per rung; ``extra["rung"]`` holds what it was compared with, the gain, and the claim's verdict.

    ``samples`` are the step's own seconds. A rung whose partner cannot run here is ``skipped``. A ladder is measured
    anew every time: gains come from pairs, not from records.

    Args:
        store: where records go, each as soon as it is made; None keeps them in memory.
        pairs: how two callables are timed in alternation.
        suite: names the file that records go to.
    """
    sides: dict[tuple[str, str], _Side] = {}
    records = []
    for done, rung in enumerate(rungs):
        if progress is not None:
            progress(done, len(rungs), str(rung))
        record = _record(rung, threads, sides, pairs)
        if store is not None:
            store.append(record, suite=suite)
        records.append(record)
    if progress is not None and rungs:
        progress(len(rungs), len(rungs), "")
    return records


def _side(step: str, problem: Problem, threads: int, sides: dict[tuple[str, str], _Side]) -> _Side:
    """Raises _CannotRun, and CheckBroken when the outputs are wrong."""
    name = resolve(step, problem)
    key = (name, problem.key)
    if key in sides:
        sides[key] = sides.pop(key)  # the last used stays longest
        return sides[key]
    item = implementation(name)
    verdict = support(item, problem)
    if not verdict.ok:
        raise _CannotRun(verdict.reason)
    if weight_bytes(problem, 4.0) > MAX_COPY_BYTES:
        raise _CannotRun(f"its weights take more than {MAX_COPY_BYTES >> 20} MiB as floats")
    while len(sides) >= _KEPT_SIDES:
        sides.pop(next(iter(sides)))
    packed = pack_copies(item, problem)
    case = first_example(Cell(problem, name, threads), problem, packed)
    judged = verify(item, case, packed.copies[0], threads)
    if not judged.ok:
        raise CheckBroken(judged.reason)
    chosen = variants(case, packed)
    cold = is_cold(1, touched_bytes(case, chosen), host().llc_bytes)
    sides[key] = _Side(ready(item, chosen, threads), cold)
    return sides[key]


def _record(rung: Rung, threads: int, sides: dict[tuple[str, str], _Side], pairs: Any) -> Record:
    name = rung.step
    about: dict[str, Any] = {"step": rung.step}

    def made(status: Any, reason: str = "", samples: Sequence[float] = (), **extra: Any) -> Record:
        return Record.make(
            rung.problem,
            name,
            threads=threads,
            result=samples,
            status=status,
            reason=reason,
            op_spec_hash=op_spec(rung.problem.op).hash,
            extra={**extra, "rung": about},
        )

    try:
        name = resolve(rung.step, rung.problem)
        item = implementation(name)
        about["change"] = item.summary
        if rung.claim is not None:
            kind = "at_least" if rung.claim.at_least else "about"
            about["claim"] = {"kind": kind, "ratio": rung.claim.ratio, "source": rung.claim.source}
        try:
            side = _side(rung.step, rung.problem, threads, sides)
        except _CannotRun as error:
            return made("unsupported", str(error))
        extra = {"kernel_version": kernel_version(item), "cold": side.cold, "steps": side.workload.steps}
        if rung.against is None:
            alone = measure(side.workload.run, stopping=_ALONE, warmup=Warmup(max_calls=1))
            return made("ok", "", [s / side.workload.steps for s in alone.samples_seconds], **extra)
        about["against"], about["against_problem"] = rung.against[0], rung.against[1].key
        try:
            other = _side(*rung.against, threads, sides)
        except _CannotRun as error:
            return made("skipped", f"{rung.against[0]}, its partner, does not run here: {error}")
        taken = pairs(other.workload.run, side.workload.run)
        about |= _gain(taken, other.workload.steps, side.workload.steps, rung)
        return made("ok", "", [s / side.workload.steps for s in taken.b_seconds], **extra)
    except Exception as error:
        return made(*failure_of(error))


def _gain(taken: Pairs, other_steps: int, own_steps: int, rung: Rung) -> dict[str, Any]:
    """What a record says about a comparison. Seconds of a pair are those of whole turns of so many calls."""
    scale = own_steps / other_steps
    interval = taken.interval
    gain = Interval(interval.low * scale, interval.high * scale, interval.confidence)
    said = {
        "gain": taken.ratio * scale,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "confidence": gain.confidence,
        "ratios": [ratio * scale for ratio in taken.ratios],
        "against_samples": [seconds / other_steps for seconds in taken.a_seconds],
    }
    return said if rung.claim is None else said | {"verdict": rung.claim.verdict(gain)}
