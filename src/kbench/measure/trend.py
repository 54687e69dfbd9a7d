"""What the steps of a history mean: a regression is a step for the worse that nothing has made good since.

What people know about a step (``Mark``) counts: a change that was wanted (``accepted``) or that the machine made
(``environment``) is divided out of all later levels, so that regressions before and after it are still seen; ``fixed``
closes what was open until then, whatever the level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .steps import FEWEST_POINTS, MIN_MAGNITUDE, Steps, find_steps
from .verdict import Verdict

MarkKind = Literal["accepted", "environment", "fixed"]
State = Literal["open", "recovered", "improved", "flapping", "accepted", "environment", "fixed"]

# A detector places a step one or two values beside the commit that made it.
NEAR = 2
# A level that was left and taken again this often is one of two states of the machine, not a change of the code.
_VISITS = 2


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step, with what became of it.

    ``cost`` is how much more is paid since (time, or the inverse of a rate; below 1 it is less), ``left`` what of that
    the best level since has left over.
    """

    at: int
    before: float
    after: float
    p: float
    cost: float
    left: float
    state: State


@dataclass(frozen=True, slots=True)
class Trend:
    """A history judged. ``left`` is the cost of the largest open regression, 1 when there is none."""

    verdict: Verdict
    reason: str
    left: float
    steps: tuple[JudgedStep, ...]
    found: Steps


def judge_history(
    values: Sequence[float],
    *,
    lower_is_better: bool = True,
    min_magnitude: float = MIN_MAGNITUDE,
    marks: Sequence[tuple[int, MarkKind]] = (),
) -> Trend:
    """Steps of ``values`` (oldest first) and what they mean; ``marks`` are of indices of values.

    Raises:
        ValueError: see ``find_steps``.
    """
    found = find_steps(values, min_magnitude=min_magnitude)
    costs = [level.value if lower_is_better else 1 / level.value for level in found.levels]
    states = _marked(found, marks)
    # Levels without what marked steps did, in units of cost.
    fair, factor = [costs[0]], 1.0
    for i, state in enumerate(states):
        if state in ("accepted", "environment"):
            factor *= costs[i] / costs[i + 1]
        fair.append(costs[i + 1] * factor)
    judged = []
    for i, step in enumerate(found.steps):
        left = min(fair[i + 1 :]) / fair[i]
        state = states[i] or _state(fair, i, min_magnitude)
        if state == "open" and any(kind == "fixed" and at >= step.at for at, kind in marks):
            state = "fixed"
        judged.append(JudgedStep(step.at, step.before, step.after, step.p, costs[i + 1] / costs[i], left, state))
    left = max((step.left for step in judged if step.state == "open"), default=1.0)
    if left > 1:
        verdict, reason = Verdict.REGRESSED, ""
    elif len(values) < FEWEST_POINTS:
        verdict, reason = Verdict.INCONCLUSIVE, f"{len(values)} of at least {FEWEST_POINTS} commits"
    else:
        verdict = Verdict.IMPROVED if fair[-1] * (1 + min_magnitude) <= fair[0] else Verdict.SAME
        reason = "goes back and forth between two levels" if any(s.state == "flapping" for s in judged) else ""
    return Trend(verdict, reason, left, tuple(judged), found)


def _marked(found: Steps, marks: Sequence[tuple[int, MarkKind]]) -> list[State | None]:
    """The mark of each step: each ``accepted`` or ``environment`` goes to the step nearest to it."""
    states: list[State | None] = [None] * len(found.steps)
    for at, kind in marks:
        if kind == "fixed":
            continue
        near = [(abs(step.at - at), i) for i, step in enumerate(found.steps) if abs(step.at - at) <= NEAR]
        if near:
            states[min(near)[1]] = kind
    return states


def _state(fair: Sequence[float], i: int, min_magnitude: float) -> State:
    """Of the unmarked step from level ``i`` to the next."""
    before, after = fair[i], fair[i + 1]
    if after < before:
        return "improved"
    if min(fair[i + 1 :]) < before * (1 + min_magnitude):
        return "recovered"
    visits = sum(1 / (1 + min_magnitude) < level / after < 1 + min_magnitude for level in fair[:i])
    return "flapping" if visits >= _VISITS else "open"
