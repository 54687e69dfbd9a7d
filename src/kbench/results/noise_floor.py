"""How far identical things seem to differ on a host: from stored comparisons of a thing with itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .record import Record

# The suite that ``kbench track aa`` stores its comparisons under.
AA_SUITE = "aa"
# Of a case's own comparisons so many, before its own floor counts and not all cases' together.
_MIN_OF_A_CASE = 10
_SHARE = 0.95
# A thing is not a thousand times as slow as itself: such a file is mistaken.
_LEAST_RATIO, _MOST_RATIO = 1e-3, 1e3


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """``of_case``: the change that 95 % of a case's A/A comparisons stay below, by (case, implementation); ``overall``
    likewise for all. ``n_calls`` of ``n`` comparisons called a change that was none."""

    n: int
    n_calls: int
    overall: float
    of_case: Mapping[tuple[str, str], float]

    def margin(self, case: str, implementation: str) -> float:
        return self.of_case.get((case, implementation), self.overall)

    @property
    def false_alarm_rate(self) -> float:
        return self.n_calls / self.n if self.n else 0.0

    def rate_interval(self) -> tuple[float, float]:
        """95 % interval of the false-alarm rate (Clopper-Pearson)."""
        from scipy.stats import binomtest

        if not self.n:
            return 0.0, 1.0
        found = binomtest(self.n_calls, self.n).proportion_ci(0.95, method="exact")
        return float(found.low), float(found.high)


def is_aa(record: Record) -> bool:
    """Whether ``record`` is a comparison of a thing with itself."""
    said = record.extra.get("compare")
    return isinstance(said, Mapping) and said.get("aa") is True and record.status == "ok"


def noise_floor(records: Iterable[Record]) -> NoiseFloor:
    """What stored A/A comparisons of one host say; without any, a floor of 0."""
    apart: dict[tuple[str, str], list[float]] = {}
    n_calls = 0
    for record in records:
        if not is_aa(record):
            continue
        said: Mapping[str, Any] = record.extra["compare"]
        ratio = said.get("ratio")
        if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not _LEAST_RATIO <= ratio <= _MOST_RATIO:
            continue
        case = str(record.problem.get("case", record.key))
        apart.setdefault((case, record.implementation), []).append(math.expm1(abs(math.log(ratio))))
        n_calls += said.get("verdict") in ("REGRESSED", "IMPROVED")
    every = [value for values in apart.values() for value in values]
    return NoiseFloor(
        len(every), n_calls, _floor(every),
        {identity: _floor(values) for identity, values in apart.items() if len(values) >= _MIN_OF_A_CASE},
    )  # fmt: skip


def _floor(values: list[float]) -> float:
    """The value that ``_SHARE`` of ``values`` do not exceed."""
    if not values:
        return 0.0
    return sorted(values)[min(len(values) - 1, math.ceil(_SHARE * len(values)) - 1)]
