"""Histories: of every case on every host, what it took at each commit, in the order of a branch.

A record is of one run. Runs of one commit are one point, their median: what differs between them is noise of the very
kind that steps are held against.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kbench.measure import median

from .branch import CommitOrder
from .foreign import UNVERSIONED
from .record import Direction, Record


@dataclass(frozen=True, slots=True)
class Point:
    """One commit. ``value`` is the median of its runs' medians, ``low`` and ``high`` are the runs' extremes."""

    commit: str
    created: str
    value: float
    low: float
    high: float
    n_runs: int


@dataclass(frozen=True, slots=True)
class Series:
    """What one case took by one implementation on one host; records with another ``op_spec_hash`` are another's."""

    key: str
    implementation: str
    host_id: str
    device: str
    unit: str
    direction: Direction
    op_spec_hash: str
    settings: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Histories:
    """``by_commit`` says whether a branch ordered the points, otherwise their time did. Records that are on no commit
    of the branch (of a changed checkout, of another branch) are left out and counted."""

    series: tuple[Series, ...]
    by_commit: bool
    n_left_out: int


def histories(records: Iterable[Record], commits: Sequence[str] | None) -> Histories:
    """Every series of ``records``; ``commits`` are a branch's, oldest first. When none of them was ever measured, or
    there is no branch, time orders."""
    usable = [record for record in records if record.is_value and record.source == "measured"]
    order = CommitOrder(commits or ())
    placed = [(order.place(record.commit), record) for record in usable]
    by_commit = any(place is not None for place, _ in placed)
    groups: dict[tuple[str, ...], dict[object, list[Record]]] = {}
    n_left_out = 0
    for place, record in placed:
        if by_commit and place is None:
            n_left_out += 1
            continue
        name = (
            record.host_id, record.key, record.implementation, record.device, record.unit, record.direction,
            record.op_spec_hash, _settings(record),
        )  # fmt: skip
        # Runs of no known commit are nobody's runs but their own.
        alone = record.created if record.commit == UNVERSIONED else record.commit
        groups.setdefault(name, {}).setdefault(place if by_commit else alone, []).append(record)
    series = [_series(name, runs, by_commit) for name, runs in sorted(groups.items())]
    return Histories(tuple(_newest_meaning(series)), by_commit, n_left_out)


def _settings(record: Record) -> str:
    """Kernel parameters: another setting is another case."""
    block = record.extra.get("block")
    if not isinstance(block, dict) or not block:
        return ""
    return ",".join(f"{name}={value}" for name, value in sorted(block.items(), key=str))[:200]


def _series(name: tuple[str, ...], runs: dict[object, list[Record]], by_commit: bool) -> Series:
    host_id, key, implementation, device, unit, direction, op_spec_hash, settings = name
    points = []
    for place, members in runs.items():
        values = [record.median for record in members if record.median is not None]
        newest = max(members, key=lambda record: record.created)
        order = place if by_commit else min(record.created for record in members)
        point = Point(newest.commit, newest.created, median(values), min(values), max(values), len(values))
        points.append((order, point))
    ordered = tuple(point for _, point in sorted(points, key=lambda item: item[0]))  # type: ignore[arg-type,return-value]
    return Series(
        key, implementation, host_id, device, unit, "higher" if direction == "higher" else "lower", op_spec_hash,
        settings, ordered,
    )  # fmt: skip


def _newest_meaning(series: Sequence[Series]) -> list[Series]:
    """Of the series that differ in ``op_spec_hash`` alone the one that was measured last."""
    newest: dict[tuple[str, ...], Series] = {}
    for one in series:
        name = (one.host_id, one.key, one.implementation, one.device, one.unit, one.direction, one.settings)
        known = newest.get(name)
        if known is None or known.points[-1].created < one.points[-1].created:
            newest[name] = one
    return list(newest.values())
