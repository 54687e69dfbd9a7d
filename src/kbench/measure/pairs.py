"""Two callables timed in alternation, so that what disturbs the machine disturbs both."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass

from . import statistics
from .clock import Clock, system_clock
from .sample import mean_seconds
from .statistics import Interval

# A sample is as many calls as fill this: longer than a time slice's end or an interrupt, short beside a person's wait.
_SAMPLE_SECONDS = 0.01
_MAX_CALLS = 1 << 16


@dataclass(frozen=True, slots=True)
class Pairs:
    """Seconds of one call; ``a_seconds[i]`` and ``b_seconds[i]`` were taken one right after the other."""

    a_seconds: tuple[float, ...]
    b_seconds: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """``a`` over ``b`` of each pair: over 1 where ``b`` is faster."""
        return tuple(a / b for a, b in zip(self.a_seconds, self.b_seconds, strict=True))

    @property
    def ratio(self) -> float:
        """The median of ``ratios``: disturbances that hit one side of a pair are as likely to hit the other."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> Interval:
        """95 % interval of the median ratio from order statistics."""
        return statistics.median_interval(self.ratios)


def measure_pairs(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    min_pairs: int = 12,
    max_pairs: int = 60,
    max_seconds: float = 1.5,
    target: float = 0.01,
    clock: Clock | None = None,
) -> Pairs:
    """Times ``a`` and ``b`` in the order A B, B A, A B, ... after one unmeasured call each.

    Stops from ``min_pairs`` on when the interval of the median ratio is within ``target`` of it to either side, when
    ``max_seconds`` are over, or at ``max_pairs``.

    Raises:
        Whatever ``a`` or ``b`` raises.
    """
    clock = clock if clock is not None else system_clock()
    sides = (a, b)
    calls = [_calls(side, clock) for side in sides]
    seconds: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    was_enabled = gc.isenabled()
    gc.disable()
    begin = clock.now_ns()
    try:
        while len(ratios) < max_pairs:
            for side in (0, 1) if len(ratios) % 2 == 0 else (1, 0):
                # Not below the clock's overhead: a ratio needs two positive numbers.
                seconds[side].append(max(mean_seconds(sides[side], calls[side], clock), 1e-9))
            ratios.append(seconds[0][-1] / seconds[1][-1])
            if len(ratios) < min_pairs:
                continue
            precise = statistics.relative_half_width(statistics.median_interval(ratios), statistics.median(ratios))
            if precise <= target or (clock.now_ns() - begin) * 1e-9 >= max_seconds:
                break
    finally:
        if was_enabled:
            gc.enable()
    return Pairs(tuple(seconds[0]), tuple(seconds[1]))


def _calls(side: Callable[[], object], clock: Clock) -> int:
    """Calls to a sample, from the length of a second call: the first one pays for lazy work."""
    mean_seconds(side, 1, clock)
    one = mean_seconds(side, 1, clock)
    return min(_MAX_CALLS, max(1, math.ceil(max(_SAMPLE_SECONDS, clock.min_sample_seconds) / max(one, 1e-9))))
