"""Histories with what was found in them: the JSON object ``kbench.track-history/1`` that verbs print and pages show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kbench.measure import MIN_MAGNITUDE, MarkKind, Trend, Verdict, judge_history

from .branch import CommitOrder
from .history import Histories, Series
from .marks import Mark

# What is told first.
_ORDER = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE, Verdict.SAME)
# A step within the machine's own noise says nothing about the code: three times the floor that `kbench track aa` found.
_FLOORS = 3


class Floor(Protocol):
    """A machine's own noise: how far a case seems to differ from itself, as a share."""

    def margin(self, case: str, implementation: str) -> float: ...


def judged_histories(
    found: Histories,
    marks: Sequence[Mark] = (),
    commits: Sequence[str] | None = None,
    *,
    min_magnitude: float = MIN_MAGNITUDE,
    floors: Mapping[str, Floor] | None = None,
) -> dict[str, Any]:
    """Each series with its levels, steps and verdict, regressions first, the largest of them first.

    Args:
        commits: the branch, oldest first, as it was given to ``histories``.
        min_magnitude: the least step worth talking about, as a share.
        floors: of each host; a step counts from three times its case's floor on.
    """
    order = CommitOrder(commits or ())
    used: set[int] = set()
    cases = []
    for series in found.series:
        known = (floors or {}).get(series.host_id)
        floor = known.margin(series.key, series.implementation) if known is not None else 0.0
        magnitude = max(min_magnitude, _FLOORS * floor)
        cases.append(_case(series, marks, order if found.by_commit else None, magnitude, used))
    rank = {verdict.value: place for place, verdict in enumerate(_ORDER)}
    cases.sort(key=lambda case: (rank[case["verdict"]], -case["left"], case["case"], case["implementation"]))
    notes = []
    if found.n_left_out:
        notes.append(f"{found.n_left_out} records are of commits that are not on the branch, and left out")
    if not found.by_commit and cases:
        notes.append("no record is of a commit of this branch: ordered by time")
    for number, mark in enumerate(marks):
        if number not in used:
            notes.append(f"the mark {mark.kind} at {mark.commit} of {mark.case} matches nothing here")
    return {
        "by_commit": found.by_commit,
        "min_magnitude": min_magnitude,
        "counts": {v.value: n for v in _ORDER if (n := sum(case["verdict"] == v.value for case in cases))},
        "cases": cases,
        "notes": notes,
    }


def _case(
    series: Series, marks: Sequence[Mark], order: CommitOrder | None, min_magnitude: float, used: set[int]
) -> dict[str, Any]:
    points = series.points
    placed: list[tuple[int, MarkKind, Mark]] = []
    for number, mark in enumerate(marks):
        if not mark.is_of(series.key, series.host_id):
            continue
        at = _index(series, mark, order)
        if at is not None:
            used.add(number)
            placed.append((at, mark.kind, mark))
    trend = judge_history(
        [point.value for point in points],
        lower_is_better=series.direction == "lower",
        min_magnitude=min_magnitude,
        marks=[(at, kind) for at, kind, _ in placed],
    )
    return {
        "case": series.key,
        "implementation": series.implementation,
        "settings": series.settings,
        "host_id": series.host_id,
        "device": series.device,
        "unit": series.unit,
        "direction": series.direction,
        "verdict": trend.verdict.value,
        "reason": trend.reason,
        "left": trend.left,
        "now": trend.found.levels[-1].value,
        "first": trend.found.levels[0].value,
        "noise": trend.found.noise,
        "rho": trend.found.rho,
        "min_magnitude": min_magnitude,
        "points": [
            {"commit": p.commit, "created": p.created, "value": p.value, "low": p.low, "high": p.high,
             "n_runs": p.n_runs}
            for p in points
        ],
        "levels": [{"start": level.start, "stop": level.stop, "value": level.value} for level in trend.found.levels],
        "steps": _steps(series, trend, placed),
    }  # fmt: skip


def _steps(series: Series, trend: Trend, placed: Sequence[tuple[int, MarkKind, Mark]]) -> list[dict[str, Any]]:
    points = series.points
    found = []
    for step in trend.steps:
        near = [(abs(at - step.at), mark.why) for at, kind, mark in placed if kind == step.state and mark.why]
        found.append(
            {
                "at": step.at,
                "commit": points[step.at].commit,
                "after_commit": points[step.at - 1].commit,
                "created": points[step.at].created,
                "before": step.before,
                "after": step.after,
                "cost": step.cost,
                "left": step.left,
                "p": step.p,
                "state": step.state,
                "why": min(near)[1] if near else "",
            }
        )
    return found


def _index(series: Series, mark: Mark, order: CommitOrder | None) -> int | None:
    """The first point at or after the marked commit: it need not have been measured itself. What is newer than every
    point is behind the last for ``fixed``, and nowhere for others."""
    commits = [point.commit for point in series.points]
    for index, commit in enumerate(commits):
        if commit.startswith(mark.commit):
            return index
    place = order.place(mark.commit) if order is not None else None
    if place is None or order is None:
        return None
    for index, commit in enumerate(commits):
        own = order.place(commit)
        if own is not None and own >= place:
            return index
    return len(commits) if mark.kind == "fixed" else None
