"""The clock that samples are taken with, and what a reading of it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

# A sample must last this many clock overheads, so that what the clock adds stays under 1 % of it.
MIN_OVERHEADS = 100

# Enough back-to-back readings that their minimum is the undisturbed cost; about 0.2 ms in all.
_CALIBRATION_READINGS = 2000


@dataclass(frozen=True, slots=True)
class Clock:
    """A monotonic clock: ``now_ns()`` in nanoseconds, and the nanoseconds between two adjacent readings."""

    now_ns: Callable[[], int]
    overhead_ns: float

    @property
    def min_sample_seconds(self) -> float:
        """The shortest interval that this clock measures to 1 %."""
        return MIN_OVERHEADS * self.overhead_ns * 1e-9


def calibrate(now_ns: Callable[[], int] = time.perf_counter_ns) -> Clock:
    """A clock with its overhead measured: the least non-zero difference of two adjacent readings.

    The least, because every disturbance only adds; non-zero, because a coarse clock often does not move between two
    readings and its step is then what limits it.
    """
    readings = [now_ns() for _ in range(_CALIBRATION_READINGS)]
    steps = [b - a for a, b in pairwise(readings) if b > a]
    return Clock(now_ns, float(min(steps, default=1)))


@lru_cache(maxsize=1)
def system_clock() -> Clock:
    """``time.perf_counter_ns``, calibrated once per process."""
    return calibrate()
