"""What every output format is made of: rows, and what they are of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from kbench.core import shown
from kbench.results import VerdictRow

# Names of benchmarks beyond this are refused by Bencher, the strictest of those who take them.
_MAX_NAME = 1024


@dataclass(frozen=True, slots=True)
class Sheet:
    """``rows`` of one run of ``verb`` (``kbench track check``).

    ``change`` is whether B took A's place, so that a slower B is a failure: two different implementations are just
    not equally fast.
    """

    verb: str
    rows: Sequence[VerdictRow]
    change: bool
    host_id: str = ""
    commit: str = ""
    created: str = ""
    notes: Sequence[str] = ()
    version: str = ""


def name_of(row: VerdictRow) -> str:
    """What the case is called from run to run: its key and what ran it, never a revision or a file."""
    name = " ".join(shown(f"{row.case} {row.implementation or row.b}").split())
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 12]}...{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def names_of(rows: Sequence[VerdictRow]) -> list[str]:
    """A name for each row, no two the same: tools that take one value a name would drop the others."""
    names: list[str] = []
    taken: dict[str, int] = {}
    for row in rows:
        name = name_of(row)
        taken[name] = taken.get(name, 0) + 1
        names.append(name if taken[name] == 1 else f"{name} #{taken[name]}")
    return names


def is_failure(sheet: Sheet, row: VerdictRow) -> bool:
    return sheet.change and row.verdict == "REGRESSED"


def interval_seconds(row: VerdictRow) -> tuple[float, float] | None:
    """B's seconds, as far as the interval of the ratio says."""
    if row.a_seconds is None or row.low is None or row.high is None:
        return None
    return row.a_seconds * row.low, row.a_seconds * row.high


def in_words(row: VerdictRow) -> str:
    """The row in one sentence, for messages: ratio, interval, margin, pairs; or why there is none."""
    if row.ratio is None:
        return f"{row.outcome}: {row.reason}" if row.reason else row.outcome
    interval = f" [{row.low:.3g}, {row.high:.3g}]" if row.low is not None and row.high is not None else ""
    pairs = f", {row.n_pairs} pairs" if row.n_pairs else ""
    reason = f": {row.reason}" if row.reason else ""
    return f"{row.outcome}: takes {row.ratio:.3g} times as long{interval}, margin {row.margin:.1%}{pairs}{reason}"
