"""The table of docs/accuracy.md, made of the records that ``prediction_accuracy.py`` stores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbench.measure import median
from kbench.results import Record

OP = "prediction"
DOCUMENT = Path(__file__).parents[1] / "docs" / "accuracy.md"
_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = ("file", "threads", "phase", "depth", "predicted t/s", "interval", "measured t/s", "predicted / measured", "")


@dataclass(frozen=True)
class Outcome:
    """One row: medians over its rounds. ``ratio`` is predicted / measured, round by round; ``low`` and ``high`` are the
    interval's ends over what was measured: the measurement lies inside where 1 does."""

    predicted: float
    measured: float
    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, record: Record) -> Outcome:
        def ratio(name: str) -> float:
            pairs = zip(record.extra[name], record.samples, strict=True)
            return median([value / measured for value, measured in pairs])

        measured = median(record.samples)
        return cls(median(record.extra["predicted"]), measured, ratio("predicted"), ratio("low"), ratio("high"))

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)

    @property
    def covered(self) -> bool:
        return self.low <= 1 <= self.high


def newest(records: Iterable[Record]) -> list[Record]:
    """The last record of each case, in the order of the first ones."""
    found: dict[str, Record] = {}
    for record in records:
        found[record.key] = record
    return list(found.values())


def rows(records: Iterable[Record]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for record in records:
        what, found = record.problem, Outcome.of(record)
        lines.append(
            (
                str(what["file"]).removesuffix(".gguf"),
                str(record.threads),
                str(what["phase"]),
                str(what["depth"]),
                f"{found.predicted:.4g}",
                f"{found.low * found.measured:.4g} to {found.high * found.measured:.4g}",
                f"{found.measured:.4g}",
                f"{found.ratio - 1:+.1%}",
                "" if found.covered else "outside",
            )
        )
    return lines


def print_table(records: Iterable[Record]) -> None:
    for cells in rows(records):
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, (32, 2, 8, 5, 7, 16, 7, 7, 8), strict=True)))


def summary(records: Sequence[Record]) -> str:
    """Median and worst error, and how many intervals hold what was measured; by phase, and of all."""
    lines = []
    for name in ("decode", "prefill", "all"):
        found = [Outcome.of(record) for record in records if name in ("all", record.problem["phase"])]
        if found:
            errors = [outcome.error for outcome in found]
            inside = sum(outcome.covered for outcome in found)
            lines.append(
                f"{name}: {len(found)} runs, median error {median(errors):.1%}, worst {max(errors):.1%}, "
                f"{inside} of {len(found)} intervals hold what was measured ({inside / len(found):.0%})"
            )
    return "\n".join(lines)


def document(text: str, records: Sequence[Record]) -> str:
    """``text`` with its table made anew."""
    commits = ", ".join(dict.fromkeys(f"`{record.commit[:8]}`" for record in records))
    lines = [_HEAD, ("---",) * len(_HEAD), *rows(records)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    listed = "".join(f"- {line}\n" for line in summary(records).splitlines())
    return _TABLE.sub(lambda match: f"{match[1]}{listed}\nCommit {commits}.\n\n{table}{match[2]}", text)


def write_document(records: Sequence[Record]) -> None:
    DOCUMENT.write_text(document(DOCUMENT.read_text(), records))
