"""Robust statistics of a series of timings: pure functions of a sequence of numbers.

Nothing is dropped as an outlier: the median and the quartiles do not care, and the raw samples are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two middle ones. ValueError when there are none."""
    return quantile(samples, 0.5)


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The ``fraction`` quantile with linear interpolation between order statistics (numpy's default)."""
    return quantile_sorted(sorted(samples), fraction)


def quantile_sorted(ordered: Sequence[float], fraction: float) -> float:
    """``quantile`` of samples that are in order already."""
    if not ordered:
        raise ValueError("no samples")
    if not 0 <= fraction <= 1:
        raise ValueError(f"a quantile's fraction is 0 to 1, not {fraction}")
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    # Clamped: rounding in the interpolation must not leave the two samples it lies between.
    return min(max(low + (high - low) * (position - below), low), high)


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    ordered = sorted(samples)
    return quantile_sorted(ordered, 0.25), quantile_sorted(ordered, 0.5), quantile_sorted(ordered, 0.75)


def median_absolute_deviation(samples: Sequence[float]) -> float:
    """Median distance to the median, unscaled (times 1.4826 it estimates a normal distribution's deviation)."""
    centre = median(samples)
    return median([abs(sample - centre) for sample in samples])


@dataclass(frozen=True, slots=True)
class Interval:
    """``[low, high]`` that covers the true value with probability ``confidence``."""

    low: float
    high: float
    confidence: float


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = 0.95) -> tuple[int, float]:
    """``(r, coverage)``: the order statistics r and n-1-r (from 0) enclose the median with at least ``confidence``.

    Each sample lies below the true median with probability 1/2 whatever the distribution, so the number that do is
    binomial(n, 1/2), and ``coverage = 1 - 2 P(X <= r)``. The narrowest such interval; with fewer than six samples no
    interval reaches 95 %, and the whole range is given with the coverage that it has.
    """
    if n < 1:
        raise ValueError("no samples")
    best = (0, max(0.0, 1 - 2 * 0.5**n))
    tail = 0.0
    for rank in range((n + 1) // 2):
        # exp of a log: comb(n, rank) overflows a float beyond n = 1029.
        tail += math.exp(math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1) - n * math.log(2))
        if 1 - 2 * tail < confidence:
            break
        best = (rank, 1 - 2 * tail)
    return best


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """Distribution-free interval of the median from order statistics; see ``median_ranks``."""
    return median_interval_sorted(sorted(samples), confidence)


def median_interval_sorted(ordered: Sequence[float], confidence: float = 0.95) -> Interval:
    """``median_interval`` of samples that are in order already."""
    rank, coverage = median_ranks(len(ordered), confidence)
    return Interval(ordered[rank], ordered[len(ordered) - 1 - rank], coverage)


def samples_needed(fraction: float, confidence: float = 0.95) -> int:
    """The least number of samples of which an interval of the ``fraction`` quantile can be had: 6 of the median, 72 of
    the 95th percentile, 368 of the 99th. With fewer, a sample beyond the quantile may not even be among them."""
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(fraction, 1 - fraction)))


@lru_cache(maxsize=4096)
def quantile_ranks(n: int, fraction: float, confidence: float = 0.95) -> tuple[int, int, float] | None:
    """``(low, high, coverage)``: order statistics, from 0, that enclose the ``fraction`` quantile, each of them missed
    with at most half of what ``confidence`` leaves; None with fewer than ``samples_needed``.

    As for the median, but a sample lies below the quantile with probability ``fraction``.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"a quantile's fraction is between 0 and 1, not {fraction}")
    if n < samples_needed(fraction, confidence):
        return None
    tail = (1 - confidence) / 2
    below, low, low_missed = 0.0, 0, 0.0
    for count in range(n):  # below = P(at most `count` samples lie below the quantile)
        log_ways = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
        below += math.exp(log_ways + count * math.log(fraction) + (n - count) * math.log(1 - fraction))
        if below <= tail:
            low, low_missed = count, below
        elif below >= 1 - tail:
            return low, count, below - low_missed
    return None


def quantile_interval(samples: Sequence[float], fraction: float, confidence: float = 0.95) -> Interval | None:
    """Distribution-free interval of a quantile from order statistics; None with too few samples."""
    ranks = quantile_ranks(len(samples), fraction, confidence)
    if ranks is None:
        return None
    ordered = sorted(samples)
    return Interval(ordered[ranks[0]], ordered[ranks[1]], ranks[2])


def relative_half_width(interval: Interval, centre: float) -> float:
    """Half the interval's width as a share of ``centre``; 0 for a point, infinite around zero."""
    width = interval.high - interval.low
    if width == 0:
        return 0.0
    return width / 2 / abs(centre) if centre else math.inf


def relative_spread(samples: Sequence[float]) -> float:
    """Interquartile range as a share of the median: the noise of one sample, whatever their number."""
    q1, centre, q3 = quartiles(samples)
    if q3 == q1:
        return 0.0
    return (q3 - q1) / abs(centre) if centre else math.inf
