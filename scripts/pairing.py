"""What the ``paired_*`` scripts make of the times of two sides: a line, a record.

The sides themselves, processes that take turns, are ``kbench.measure``'s. Figures are medians over pairs of ratios of
rates, with the order-statistic interval that covers the true median with >= 95 %; with ``--store`` they are also
appended to a results folder as records (``kbench.results``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbench.measure import median, median_interval
from kbench.results import Record, Store


@dataclass(frozen=True)
class Comparison:
    """One row of a table: rates of two sides, pair by pair; ``unit`` of the rates, higher is better."""

    op: str
    params: Mapping[str, int | float | str]
    ours: str
    theirs: str
    our_rates: tuple[float, ...]
    their_rates: tuple[float, ...]
    unit: str
    threads: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.our_rates, self.their_rates, strict=True)]

    def line(self) -> str:
        ratios = self.ratios
        interval = median_interval(ratios)
        return (
            f"{self.op:8} {self.ours:22} {median(self.our_rates):9.1f} {self.unit}   {self.theirs:22} "
            f"{median(self.their_rates):9.1f} {self.unit}   ratio {median(ratios):.3f} "
            f"[{interval.low:.3f}, {interval.high:.3f}]   {len(ratios)} pairs, {self.threads} threads"
        )

    def record(self) -> Record:
        """The ratios as samples; rates and what was compared beside them."""
        interval = median_interval(self.ratios)
        return Record.make(
            (f"paired_{self.op}", {**self.params, "against": self.theirs}),
            self.ours,
            threads=self.threads,
            result=_rounded(self.ratios),
            unit="ratio",
            direction="higher",
            extra={
                "rate_unit": self.unit,
                "our_rates": _rounded(self.our_rates),
                "their_rates": _rounded(self.their_rates),
                "interval": _rounded((interval.low, interval.high)),
                "coverage": round(interval.confidence, 4),
                **self.extra,
            },
        )


def _rounded(values: Iterable[float]) -> list[float]:
    """Five digits: more than any of these figures is worth."""
    return [float(f"{value:.5g}") for value in values]


def report(comparisons: Sequence[Comparison], store: str | None) -> None:
    """Prints one line each and, with a folder, appends them to its records of suite ``paired``."""
    for comparison in comparisons:
        print(comparison.line(), flush=True)
    if store and comparisons:
        Store(store).append([comparison.record() for comparison in comparisons], suite="paired")
