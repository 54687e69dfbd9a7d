"""When enough samples have been taken: rules that say why they stopped.

A rule sees each sample and the seconds since the first one began; it never looks at a clock, so that it can be
tested on made-up series. ``start`` makes it forget the series before.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from .statistics import median_interval_sorted, median_ranks, quantile_sorted, relative_half_width


class StoppingRule(Protocol):
    """``start``, then ``add`` after each sample until ``done``; ``reason`` says in words what stopped it."""

    def start(self) -> None:
        """Forgets everything."""

    def add(self, sample_seconds: float, elapsed_seconds: float) -> None:
        """Takes one sample; ``elapsed_seconds`` is the wall time since ``start``."""

    def done(self) -> bool:
        """Whether to stop; never before the first sample."""

    @property
    def reason(self) -> str:
        """Why it stopped; empty while it has not."""


@dataclass(slots=True)
class FixedCount:
    """Exactly ``n_samples`` samples."""

    n_samples: int
    _n: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_samples < 1:
            raise ValueError("a measurement needs at least one sample")

    def start(self) -> None:
        self._n = 0

    def add(self, sample_seconds: float, elapsed_seconds: float) -> None:
        self._n += 1

    def done(self) -> bool:
        return self._n >= self.n_samples

    @property
    def reason(self) -> str:
        return f"count: {self.n_samples} samples were asked for" if self.done() else ""


@dataclass(slots=True)
class TimeBudget:
    """As many samples as fit ``seconds`` of wall time, at least ``min_samples``."""

    seconds: float
    min_samples: int = 1
    _n: int = field(default=0, init=False, repr=False)
    _elapsed: float = field(default=0.0, init=False, repr=False)

    def start(self) -> None:
        self._n, self._elapsed = 0, 0.0

    def add(self, sample_seconds: float, elapsed_seconds: float) -> None:
        self._n, self._elapsed = self._n + 1, elapsed_seconds

    def done(self) -> bool:
        return self._n >= max(1, self.min_samples) and self._elapsed >= self.seconds

    @property
    def reason(self) -> str:
        return f"time: {self.seconds:g} s are over after {self._n} samples" if self.done() else ""


# The interval of the median is looked at after every sample up to here, then after every CHECK_EVERY-th: the look
# costs more as samples add up, and tells less that is new.
_CHECK_ALWAYS = 64
_CHECK_EVERY = 16

# The noise has settled when its last estimates, taken _CHECK_EVERY samples apart, lie within 5 % of each other.
_SETTLED_ESTIMATES = 5
_SETTLED_SPREAD = 0.05


@dataclass(slots=True)
class RelativeNoise:
    """Stops when the median is known well enough, or when more samples would not teach more.

    In this order:
      precise: the 95 % interval of the median (order statistics) is within ``target`` of it to either side;
      settled: the relative interquartile range no longer changes, so this is the noise that the machine has;
      samples: ``max_samples`` were taken;
      time: ``max_seconds`` of wall time are over.
    None of them before ``min_samples``, but time: one sample may take longer than the budget.
    """

    target: float = 0.01
    min_samples: int = 10
    max_samples: int = 1000
    max_seconds: float = 2.0
    _ordered: list[float] = field(default_factory=list, init=False, repr=False)
    _estimates: deque[float] = field(default_factory=lambda: deque(maxlen=_SETTLED_ESTIMATES), init=False, repr=False)
    _reason: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        if median_ranks(self.min_samples)[1] < 0.95:
            raise ValueError(f"min_samples is {self.min_samples}: under 6 samples no interval covers 95 %")
        if self.max_samples < self.min_samples:
            raise ValueError(f"max_samples {self.max_samples} is under min_samples {self.min_samples}")

    def start(self) -> None:
        self._ordered.clear()
        self._estimates.clear()
        self._reason = ""

    def add(self, sample_seconds: float, elapsed_seconds: float) -> None:
        insort(self._ordered, sample_seconds)
        n = len(self._ordered)
        if n >= self.min_samples and (n <= _CHECK_ALWAYS or n % _CHECK_EVERY == 0):
            self._judge(n)
        if not self._reason and n >= self.max_samples:
            self._reason = f"samples: {n} taken, median known to ±{self._noise():.1%}"
        if not self._reason and elapsed_seconds >= self.max_seconds:
            known = f"median known to ±{self._noise():.1%}" if n >= 6 else "too few for an interval"
            self._reason = f"time: {self.max_seconds:g} s are over after {n} samples, {known}"

    def _noise(self) -> float:
        centre = quantile_sorted(self._ordered, 0.5)
        return relative_half_width(median_interval_sorted(self._ordered), centre)

    def _judge(self, n: int) -> None:
        noise = self._noise()
        if noise <= self.target:
            self._reason = f"precise: median known to ±{noise:.2%} after {n} samples (target ±{self.target:.2%})"
            return
        if n < _CHECK_ALWAYS or n % _CHECK_EVERY:
            return
        q1, centre, q3 = (quantile_sorted(self._ordered, fraction) for fraction in (0.25, 0.5, 0.75))
        self._estimates.append((q3 - q1) / centre if centre else 0.0)
        full = len(self._estimates) == _SETTLED_ESTIMATES
        if full and max(self._estimates) - min(self._estimates) <= _SETTLED_SPREAD * max(self._estimates):
            spread = self._estimates[-1]
            self._reason = f"settled: spread stays {spread:.1%}, median known to ±{noise:.1%} after {n} samples"

    def done(self) -> bool:
        return bool(self._reason)

    @property
    def reason(self) -> str:
        return self._reason
