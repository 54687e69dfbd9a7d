"""The Hodges-Lehmann estimate against brute force, p-values against scipy, coverage by simulation."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kbench.measure import hodges_lehmann, hodges_lehmann_interval, signed_rank_p

VALUES = st.lists(st.floats(-10, 10), min_size=1, max_size=25)
# No two magnitudes alike: with ties scipy leaves the exact distribution.
DISTINCT = st.lists(st.floats(-10, 10).filter(lambda v: abs(v) > 1e-3), min_size=3, max_size=25, unique_by=abs)


@given(VALUES)
def test_the_estimate_is_the_median_of_all_averages(values: list[float]) -> None:
    brute = np.median([(a + b) / 2 for a, b in combinations_with_replacement(values, 2)])
    assert hodges_lehmann(values) == pytest.approx(brute, abs=1e-12)


@given(DISTINCT, st.sampled_from([0.0, 0.5, -1.25]))
def test_p_values_are_scipys(values: list[float], centre: float) -> None:
    shifted = np.subtract(values, centre)
    if len(np.unique(np.abs(shifted))) < len(values) or not shifted.all():
        return
    above, below = signed_rank_p(values, centre)
    assert above == pytest.approx(stats.wilcoxon(shifted, alternative="greater", method="exact").pvalue, abs=1e-9)
    assert below == pytest.approx(stats.wilcoxon(shifted, alternative="less", method="exact").pvalue, abs=1e-9)


@given(DISTINCT, st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_holds_the_centres_that_the_test_does_not_reject(values: list[float], confidence: float) -> None:
    interval = hodges_lehmann_interval(values, confidence)
    wide = max(1e-6, 1e-6 * (interval.high - interval.low))
    if interval.confidence < confidence:
        assert (interval.low, interval.high) == (min(values), max(values))
        return
    for centre, kept in ((interval.low + wide, True), (interval.high - wide, True),
                         (interval.low - wide, False), (interval.high + wide, False)):  # fmt: skip
        if kept and not interval.low <= centre <= interval.high:
            continue  # an interval of one point
        p = 2 * min(signed_rank_p(values, centre))
        assert (p > 1 - confidence - 1e-9) is kept or abs(p - (1 - confidence)) < 1e-9


def test_ties_and_zeros_are_no_evidence() -> None:
    assert signed_rank_p([0.0] * 9) == (1.0, 1.0)
    above, below = signed_rank_p([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert above > 2**-8 and below == 1.0


def test_five_pairs_have_no_interval_of_95_percent() -> None:
    interval = hodges_lehmann_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (interval.low, interval.high, interval.confidence) == (1.0, 5.0, 0.9375)
    assert hodges_lehmann_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).confidence == pytest.approx(1 - 2 / 64)


@pytest.mark.parametrize("n", [8, 20])
@pytest.mark.parametrize("draw", ["normal", "heavy"])
def test_the_interval_covers_the_centre(n: int, draw: str) -> None:
    rng = np.random.default_rng(n)
    values = rng.normal(1, 1, (1500, n)) if draw == "normal" else 1 + rng.standard_t(1.5, (1500, n))
    hits = sum(i.low <= 1 <= i.high for i in map(hodges_lehmann_interval, values.tolist()))
    # Exact for any symmetric noise; 1500 draws know it to 3 x sqrt(0.05 x 0.95 / 1500) = 1.7 %.
    assert hits / 1500 >= 0.95 - 0.017


def test_no_values_and_too_many() -> None:
    for values in ([], [0.0] * 1001):
        with pytest.raises(ValueError, match="values"):
            hodges_lehmann(values)
