"""OpenMetrics text, for a Prometheus push gateway or a node exporter's textfile."""

from __future__ import annotations

from collections.abc import Callable

from kbench.core import shown
from kbench.results import VerdictRow

from .sheet import Sheet, interval_seconds, name_of, names_of

# Name, unit (a suffix of the name, as the format wants it), help, and the value of a row.
_GAUGES: tuple[tuple[str, str, str, Callable[[VerdictRow], float | None]], ...] = (
    ("kbench_case_seconds", "seconds", "Median time of a call of the newer side.",
     lambda row: row.b_seconds if not row.tokens else None),
    ("kbench_case_low_seconds", "seconds", "Lower end of that time's interval.", lambda row: _end(row, 0)),
    ("kbench_case_high_seconds", "seconds", "Upper end of that time's interval.", lambda row: _end(row, 1)),
    ("kbench_case_tokens_per_second", "", "Median rate of the newer side.",
     lambda row: row.tokens / row.b_seconds if row.tokens and row.b_seconds else None),
    ("kbench_baseline_seconds", "seconds", "Median time of a call of the baseline.",
     lambda row: row.a_seconds if not row.tokens else None),
    ("kbench_change_ratio", "ratio", "Time of the newer side over that of the baseline.", lambda row: row.ratio),
)  # fmt: skip
_OUTCOMES = ("REGRESSED", "IMPROVED", "SAME", "INCONCLUSIVE")


def openmetrics(sheet: Sheet) -> str:
    """Gauges by case, and the verdict as a state set."""
    lines = []
    named = list(zip(sheet.rows, names_of(sheet.rows), strict=True))
    for metric, unit, words, value_of in _GAUGES:
        samples = [(row, name, value) for row, name in named if (value := value_of(row)) is not None]
        if not samples:
            continue
        lines += [f"# TYPE {metric} gauge", *([f"# UNIT {metric} {unit}"] if unit else []), f"# HELP {metric} {words}"]
        lines += [f"{metric}{{{_labels(sheet, row, name)}}} {value!r}" for row, name, value in samples]
    lines += ["# TYPE kbench_verdict stateset", "# HELP kbench_verdict What is said of the newer side."]
    for row, name in named:
        for outcome in dict.fromkeys((*_OUTCOMES, row.outcome)):
            state = f'{_labels(sheet, row, name)},kbench_verdict="{_escaped(outcome)}"'
            lines.append(f"kbench_verdict{{{state}}} {int(outcome == row.outcome)}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _end(row: VerdictRow, which: int) -> float | None:
    interval = interval_seconds(row)
    return interval[which] if interval is not None and not row.tokens else None


def _labels(sheet: Sheet, row: VerdictRow, name: str) -> str:
    """``case`` and ``implementation`` make a series; two rows that share both are told apart by their number."""
    labels = {"case": row.case, "implementation": row.implementation or row.b, "host": sheet.host_id,
              "number": name[len(name_of(row)) :].strip(" #")}  # fmt: skip
    return ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items() if value)


def _escaped(text: str) -> str:
    return shown(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
