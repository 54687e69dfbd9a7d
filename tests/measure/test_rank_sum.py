"""The rank-sum interval against scipy's exact test, and by counting."""

from __future__ import annotations

import itertools
import random

import pytest
from scipy import stats

from kbench.measure import shift, shift_interval
from kbench.measure.rank_sum import cumulative


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (4, 3), (3, 5)])
def test_the_distribution_by_counting_all_orders(m: int, n: int) -> None:
    counts = [0] * (m * n + 1)
    for places in itertools.combinations(range(m + n), m):
        others = [place for place in range(m + n) if place not in places]
        counts[sum(other > place for place in places for other in others)] += 1
    total = sum(counts)
    below = list(itertools.accumulate(counts))
    assert cumulative(m, n) == pytest.approx([value / total for value in below])


@pytest.mark.parametrize("seed", range(6))
def test_a_shift_at_the_intervals_edge_is_what_scipy_barely_rejects(seed: int) -> None:
    rng = random.Random(seed)
    a = [rng.gauss(0, 1) for _ in range(5 + seed % 3)]
    b = [rng.gauss(0.5, 1) for _ in range(6)]
    interval = shift_interval(a, b)
    assert interval.low <= shift(a, b) <= interval.high

    def p(centre: float) -> float:
        return float(stats.mannwhitneyu([x + centre for x in a], b, method="exact").pvalue)

    assert interval.confidence >= 0.95
    for edge, outwards in ((interval.low, -1e-9), (interval.high, 1e-9)):
        assert p(edge + outwards) == pytest.approx(1 - interval.confidence)
        assert p(edge - outwards) > 0.05


def test_too_few_values_say_so() -> None:
    interval = shift_interval([1.0, 2.0], [3.0, 5.0])
    assert (interval.low, interval.high) == (1.0, 4.0) and interval.confidence == pytest.approx(1 - 2 / 6)
    with pytest.raises(ValueError, match="accepted: 1 to 100"):
        shift_interval([], [1.0])
