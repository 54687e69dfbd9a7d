"""Implementations compared on problems, in pairs: each side a process of its own, checked before it is timed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kbench.core import CPU, InvalidEnvironment, KbenchError, Problem, UserError
from kbench.kernels import (
    PEER_NAMES,
    best,
    comparable,
    implementations,
    peer_implementation,
    runnable_on,
    support,
)
from kbench.measure import Guard, Judgement, Plan, Side, decide
from kbench.results import Store

from .contest import Contest, Outcome
from .gpu import GPU, GPU_COLD_BYTES, GPU_KERNELS, NEEDS, has_gpu
from .runner import Progress, part_for
from .shrink import Part, part_of, weight_bytes

# A sample is as many turns as fill this: long beside an interrupt and the messages between processes.
SAMPLE_SECONDS = 0.02
# Of pairs of one problem; what takes longer gets fewer looks, and beyond _SLOW times this none.
MAX_SECONDS = 20.0
_FEWEST_PAIRS = 8
_SLOW = 6
# A ratio within this is worth a second opinion of processes that were started anew: what a process is lucky with,
# memory pages and the like, was seen to be worth a third.
_LUCK = 2.0
# Pairs that a process may take part in before the next look: its luck lasts as long as it does, and a longer comparison
# averages over several.
_PAIRS_A_PROCESS = 24

# What people call things: kbench's best CPU kernels are the counterpart of KTransformers' CPUInfer.
CPUINFER = "cpuinfer"
ALIASES = (CPUINFER, *GPU_KERNELS)

MakeSide = Callable[[int, str], Side]

# A block of pairs that was taken in a bad state of the machine is taken again, so often.
_MAX_DISCARDED = 3


def op_side(which: int, name: str) -> Side:
    """A process that times implementation ``name``; ``which`` is 0 for A, 1 for B."""
    return Side(f"{'AB'[which]} ({name})", ["-m", "kbench.suites.op_side"])


def gpu_op_side(which: int, name: str) -> Side:
    """As ``op_side``, on the GPU."""
    return Side(f"{'AB'[which]} ({name} on {GPU})", ["-m", "kbench.suites.gpu_side"])


def on_gpu(names: Sequence[str]) -> bool:
    """Whether the sides are to be timed on the GPU: one of them has kernels for nothing else."""
    return any(name in GPU_KERNELS for name in names)


def check_names(names: Sequence[str]) -> None:
    """That every side can run here at all.

    Raises:
        UserError: an unknown name.
        InvalidEnvironment: something is missing; the message says what to install.
    """
    device = GPU if on_gpu(names) else CPU
    for name in names:
        if name in GPU_KERNELS and not has_gpu():
            todo = f"it needs {NEEDS[name]}"
            raise InvalidEnvironment("no CUDA GPU is here", where=name, accepted=f"here: {_here()}", todo=todo)
        if name == CPUINFER:
            if device != CPU:
                raise UserError(f"{CPUINFER} is CPU kernels", where=" ".join(names), accepted="what runs on a GPU")
            continue
        item = _known(name)
        runnable = item.runnable() if device == CPU else runnable_on(item, device)
        if not runnable.ok:
            raise InvalidEnvironment(f"cannot run here: {runnable.reason}", where=name, accepted=_here())


def comparable_names() -> tuple[str, ...]:
    """What ``check_names`` knows, whether it can run here or not."""
    return tuple(dict.fromkeys((*ALIASES, *PEER_NAMES, *(item.name for item in implementations()))))


def _here() -> str:
    return ", ".join(item.name for item in implementations() if item.runnable().ok)


def _known(name: str) -> Any:
    try:
        return comparable(name)
    except UserError as error:
        accepted = f"{', '.join((*ALIASES, *PEER_NAMES))}, {error.accepted}"
        raise UserError(error.found, accepted=accepted, todo=error.todo) from None


def resolve(name: str, problem: Problem) -> str:
    """``cpuinfer`` is the best of our CPU kernels for ``problem``; other names stand for themselves."""
    return best(problem, CPU) if name == CPUINFER else name


def contests(problems: Sequence[Problem], a: str, b: str, threads: int) -> list[Contest]:
    """``a`` against ``b`` on every problem, with ``threads`` unless on a GPU. Where ``cpuinfer`` takes part and
    KTransformers' kernels are installed and take the problem, they too, against the other."""
    found: list[Contest] = []
    threads = 1 if on_gpu((a, b)) else threads
    for problem in problems:
        found.append(Contest(problem, resolve(a, problem), resolve(b, problem), threads))
        if CPUINFER in (a, b) and problem.op == "moe_experts" and "kt" not in (a, b):
            kt = peer_implementation("kt")
            if support(kt, problem).ok:
                pair = tuple("kt" if name == CPUINFER else resolve(name, problem) for name in (a, b))
                if pair[0] != pair[1]:
                    found.append(Contest(problem, pair[0], pair[1], threads))
    return found


def missing_peers(problems: Sequence[Problem], names: Sequence[str]) -> list[str]:
    """What else could have been compared, and what to install for it."""
    kt = peer_implementation("kt").runnable()
    wanted = CPUINFER in names and any(problem.op == "moe_experts" for problem in problems)
    return [f"KTransformers' own kernels are left out: {kt.reason}"] if wanted and not kt.ok else []


def compare_ops(
    wanted: Sequence[Contest],
    store: Store | None,
    plan: Plan,
    *,
    max_seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
    make_side: MakeSide | None = None,
    suite: str = "compare",
    guard: Guard | None = None,
    about: Mapping[str, Any] = {},
) -> list[Outcome]:
    """One outcome for each contest, in their order; each is stored as soon as it is known.

    Both sides measure the same part of a problem with the same bytes. A side that is wrong, or dies, is an outcome with
    the reason and never a time. Pairs that were taken while ``guard`` found the machine in a bad state are thrown away
    and taken again; where that goes on the outcome is ``disturbed``. Of revisions (contests with ``names``) a case that
    is another one on the two sides is ``unlike``. ``about`` is stored with every outcome.

    Raises:
        UserError: the sides do not measure the same thing; the message names the field.
    """
    plan = replace(plan, n_comparisons=max(1, len(wanted)))
    outcomes = []
    of_gpu = any(on_gpu((contest.a, contest.b)) for contest in wanted)
    sides = _Sides(make_side or (gpu_op_side if of_gpu else op_side))
    guard = Guard() if guard is None else guard
    try:
        for done, contest in enumerate(wanted):
            if progress is not None:
                progress(done, len(wanted), f"{contest.problem} {contest.a} {contest.b}")
            chosen = plan if contest.margin is None else replace(plan, margin=max(plan.margin, contest.margin))
            outcome = _outcome(contest, sides, chosen, max_seconds, guard)
            outcome = replace(outcome, extra={**outcome.extra, **about})
            if store is not None:
                store.append(outcome.record(), suite=suite)
            outcomes.append(outcome)
    finally:
        sides.stop()
    if progress is not None and wanted:
        progress(len(wanted), len(wanted), "")
    return outcomes


def few_looks(plan: Plan) -> tuple[int, int]:
    """Two looks, for what is slow, the first after the fewest pairs that can make a call there: the least p of n pairs
    is 2 / 2**n, and the first of two looks has a third of the error rate, which all comparisons share."""
    first = max(_FEWEST_PAIRS, math.ceil(math.log2(2 * 3 * plan.n_comparisons / plan.alpha)))
    return first, 2 * first


class _Sides:
    """Processes by side and implementation."""

    def __init__(self, make: MakeSide) -> None:
        self._make = make
        self._sides: dict[tuple[int, str], Side] = {}

    def launch(self, contest: Contest) -> None:
        """Starts both sides' processes, where they do not run yet, at the same time."""
        for which, name in enumerate((contest.a, contest.b)):
            self._side(which, name).launch()

    def _side(self, which: int, name: str) -> Side:
        """The process of this side; another implementation's is stopped, because its weights take memory."""
        for other in [key for key in self._sides if key[0] == which and key[1] != name]:
            self._sides.pop(other).stop()
        if (which, name) not in self._sides:
            self._sides[which, name] = self._make(which, name)
        return self._sides[which, name]

    def opened(self, which: int, name: str, problem: Problem, contest: Contest) -> tuple[Side, dict[str, Any]]:
        """The side with ``problem`` open, and what it says of it."""
        side = self._side(which, name)
        side.start()
        said: dict[str, Any] = side.ask(
            "open",
            {"problem": problem.key, "implementation": name, "threads": contest.threads, "block": dict(contest.block)},
        )
        return side, said

    def stop(self) -> None:
        for side in self._sides.values():
            side.stop()


def same_part(contest: Contest) -> Part:
    """The part that both sides measure: the smaller of what each would. A GPU has memory and speed for whole matrices,
    but of experts a part there too: packing all would take minutes."""
    if on_gpu((contest.a, contest.b)):
        is_large = contest.problem.op == "moe_experts"
        return part_of(contest.problem, GPU_COLD_BYTES) if is_large else Part(contest.problem)
    parts = [part_for(comparable(name), contest.problem) for name in (contest.a, contest.b)]
    return min(parts, key=lambda part: (weight_bytes(part.problem, None), -part.scale))


class _Failed(Exception):
    def __init__(self, status: Any, reason: str) -> None:
        self.status, self.reason = status, reason


class _Unlike(UserError):
    """The sides do not measure the same thing."""


def _outcome(contest: Contest, sides: _Sides, plan: Plan, max_seconds: float, guard: Guard) -> Outcome:
    names = contest.names
    empty = Outcome(contest.key, *contest.sides, contest.threads, implementation=contest.a if names else "",
                    extra={"margin": plan.margin}, device=str(GPU if on_gpu((contest.a, contest.b)) else CPU),
                    )  # fmt: skip
    try:
        return _paired(contest, empty, sides, plan, max_seconds, guard)
    except _Failed as error:
        return replace(empty, status=error.status, reason=error.reason)
    except _Unlike as error:
        if names is None:
            raise
        return replace(empty, status="unlike", reason=error.found)
    except UserError:
        raise
    except KbenchError as error:
        sides.stop()
        return replace(empty, status="crashed", reason=error.message)


def _open(contest: Contest, part: Part, sides: _Sides) -> tuple[list[Side], list[dict[str, Any]]]:
    pair, said = [], []
    sides.launch(contest)
    for which, name in enumerate((contest.a, contest.b)):
        side, about = sides.opened(which, name, part.problem, contest)
        if "failed" in about:
            kinds = {"wrong": "wrong", "Unsupported": "unsupported", "UserError": "unsupported"}
            raise _Failed(kinds.get(about["failed"], "crashed"), f"{contest.sides[which]}: {about['found']}")
        pair.append(side)
        said.append(about)
    for field in ("checksum", "op_spec_hash"):
        if said[0][field] != said[1][field]:
            what = {"checksum": "weights or inputs", "op_spec_hash": "definition of the operation"}[field]
            raise _Unlike(
                f"the sides differ in {field} ({what}): {said[0][field]} and {said[1][field]}", where=contest.key
            )
    return pair, said


def _paired(
    contest: Contest, empty: Outcome, sides: _Sides, plan: Plan, max_seconds: float, guard: Guard
) -> Outcome:  # fmt: skip
    part = same_part(contest)
    pair, said = _open(contest, part, sides)
    huge = [[about.get("huge_bytes") for about in said]]
    one = sum(max(about["call_seconds"], SAMPLE_SECONDS) for about in said)
    needed = 2 * one * plan.looks[0]
    if needed > max_seconds:
        plan = replace(plan, looks=few_looks(plan))
        least = 2 * one * plan.looks[0]
        if least > _SLOW * max_seconds:
            raise _Failed("slow", f"a pair takes {one:.1f} s; --max-seconds {math.ceil(least / _SLOW)}")
    samples: tuple[list[float], list[float]] = ([], [])
    confirming: list[float] = []
    turn = 0
    discarded: list[str] = []
    begun = 0

    def block(n: int) -> tuple[list[float], list[float]]:
        nonlocal turn
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(n):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                answer = pair[which].ask("take", {"seconds": SAMPLE_SECONDS})
                if not isinstance(answer, float):
                    raise _Failed("crashed", f"{contest.sides[which]}: {answer.get('found', answer)}")
                seconds[which].append(answer * part.scale)
            turn += 1
        return seconds

    def take(n: int, into: tuple[list[float], list[float]]) -> list[float]:
        while True:
            guard.restart()
            seconds = block(n)
            why = guard.bad()
            if not why:
                break
            discarded.append(f"{n} pairs: {'; '.join(why)}")
            if len(discarded) > _MAX_DISCARDED:
                raise _Failed("disturbed", f"taken in a bad state {len(discarded)} times, last {discarded[-1]}")
        for which in (0, 1):
            into[which].extend(seconds[which])
        return [math.log(b / a) for a, b in zip(*seconds, strict=True)]

    def start_anew() -> None:
        nonlocal pair, begun
        middle = math.exp(sorted(math.log(b / a) for a, b in zip(*samples, strict=True))[len(samples[0]) // 2])
        if 1 / _LUCK < middle < _LUCK:
            sides.stop()
            pair, again = _open(contest, part, sides)
            huge.append([about.get("huge_bytes") for about in again])
        begun = len(samples[0])

    def more(n: int) -> list[float]:
        if len(samples[0]) - begun >= _PAIRS_A_PROCESS:
            start_anew()
        return take(n, samples)

    def fresh(n: int) -> list[float]:
        start_anew()
        found = take(n, ([], []))
        confirming.extend(found)
        return found

    begin = time.monotonic()
    judgement: Judgement = decide(
        more, plan, take_fresh=fresh, out_of_time=lambda: time.monotonic() - begin > max_seconds
    )
    extra: Mapping[str, Any] = {
        "margin": plan.margin,
        "subset": part.note,
        "cold": [about["cold"] for about in said],
        "error_share": [about["error_share"] for about in said],
        "prepared_bytes": [about["prepared_bytes"] for about in said],
        "kernel_version": [about["kernel_version"] for about in said],
        "huge_bytes": huge,
        "sides": [dict(side.about) for side in pair],
        "python": sys.version.split()[0],
        "discarded": discarded,
        "confirming": [float(f"{math.exp(value):.6g}") for value in confirming],
    }
    return replace(
        empty, judgement=judgement, a_samples=tuple(samples[0]), b_samples=tuple(samples[1]), extra=extra,
        reason=judgement.reason,
    )  # fmt: skip
