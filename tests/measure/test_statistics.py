"""Statistics against numpy and scipy, and the interval of the median against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kbench.measure import (
    median,
    median_absolute_deviation,
    median_interval,
    quantile_interval,
    quartiles,
    relative_spread,
    samples_needed,
)
from kbench.measure.statistics import median_ranks, quantile, quantile_ranks, relative_half_width

SAMPLES = st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=60)


@given(SAMPLES)
def test_quantiles_are_numpys(samples: list[float]) -> None:
    assert median(samples) == pytest.approx(np.median(samples))
    assert quartiles(samples) == pytest.approx(tuple(np.percentile(samples, [25, 50, 75])))
    assert median_absolute_deviation(samples) == pytest.approx(stats.median_abs_deviation(samples), abs=1e-9)


@given(SAMPLES, st.floats(0, 1))
def test_a_quantile_lies_within_the_samples(samples: list[float], fraction: float) -> None:
    assert min(samples) <= quantile(samples, fraction) <= max(samples)


@given(st.integers(1, 300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_ranks_are_the_narrowest_that_cover(n: int, confidence: float) -> None:
    rank, coverage = median_ranks(n, confidence)
    tail = stats.binom.cdf([rank - 1, rank, rank + 1], n, 0.5)
    assert 0 <= rank <= (n - 1) // 2
    assert coverage == pytest.approx(max(0.0, 1 - 2 * tail[1]), abs=1e-9)
    if coverage >= confidence + 1e-9 and rank < (n - 1) // 2:
        assert 1 - 2 * tail[2] < confidence + 1e-9
    if coverage < confidence - 1e-9:
        assert rank == 0  # the whole range, with the coverage that it has


def test_six_samples_are_the_least_that_reach_95_percent() -> None:
    assert median_ranks(5)[1] == pytest.approx(0.9375)
    assert median_ranks(6) == pytest.approx((0, 1 - 2 / 64))


def test_a_large_n_does_not_overflow() -> None:
    rank, coverage = median_ranks(5000)
    assert 2400 < rank < 2450 and 0.95 <= coverage < 0.96


@pytest.mark.parametrize("n", [6, 11, 30])
def test_the_interval_covers_the_median_of_a_skewed_distribution(n: int) -> None:
    rng = np.random.default_rng(n)
    draws = rng.lognormal(0.0, 1.0, (2000, n))  # its median is exp(0) = 1
    hits = sum(interval.low <= 1 <= interval.high for interval in map(median_interval, draws.tolist()))
    # Nominal coverage or more; 2000 draws know it to 3 x sqrt(0.05 x 0.95 / 2000) = 1.5 %.
    assert hits / 2000 >= 0.95 - 0.015


def test_an_outlier_moves_neither_median_nor_spread_much() -> None:
    clean = [1.0 + 0.001 * i for i in range(21)]
    dirty = [*clean[:-1], 100.0]
    assert median(dirty) == median(clean)
    assert relative_spread(dirty) == pytest.approx(relative_spread(clean))


def test_degenerate_series() -> None:
    assert relative_spread([2.0] * 9) == 0
    assert relative_spread([0.0] * 9) == 0
    assert relative_half_width(median_interval([0.0] * 9), 0.0) == 0
    for function in (median, quartiles, median_interval):
        with pytest.raises(ValueError, match="no samples"):
            function([])


@given(st.integers(1, 900), st.sampled_from([0.05, 0.25, 0.5, 0.9, 0.95, 0.99]))
def test_ranks_of_a_quantile_are_the_binomials(n: int, fraction: float) -> None:
    ranks = quantile_ranks(n, fraction)
    assert (ranks is None) == (n < samples_needed(fraction))
    if ranks is not None:
        low, high, coverage = ranks
        # A sample of rank `low` (from 0) lies above the quantile when at most `low` samples lie below it.
        below = stats.binom(n, fraction)
        assert below.cdf(low) <= 0.025 < below.cdf(low + 1)
        assert below.sf(high) <= 0.025 < below.sf(high - 1)
        assert coverage == pytest.approx(below.cdf(high) - below.cdf(low), abs=1e-9)


def test_samples_that_a_percentile_needs() -> None:
    assert [samples_needed(fraction) for fraction in (0.5, 0.95, 0.99)] == [6, 72, 368]
    assert quantile_interval([1.0] * 71, 0.95) is None and quantile_interval([1.0] * 72, 0.95) is not None
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile_ranks(10, 1.0)


def test_the_interval_of_a_percentile_covers_it() -> None:
    rng = np.random.default_rng(3)
    truth, covered = stats.expon.ppf(0.95), 0
    for _ in range(400):
        interval = quantile_interval(rng.exponential(size=200).tolist(), 0.95)
        assert interval is not None
        covered += interval.low <= truth <= interval.high
    assert covered / 400 > 0.93
