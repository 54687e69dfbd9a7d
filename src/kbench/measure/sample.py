"""Taking samples of a callable: warm-up, batching, a stopping rule, and everything that was seen."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from . import statistics
from .clock import Clock, system_clock
from .statistics import Interval
from .stopping import RelativeNoise, StoppingRule

# Beyond this many calls a batch no longer helps, and a function of zero length would never fill one.
_MAX_BATCH = 1 << 16


@dataclass(frozen=True, slots=True)
class Warmup:
    """Calls before the first sample: until two neighbouring windows agree, or the calls or seconds are used up.

    Windows of ``window`` calls agree when their medians differ by at most ``tolerance``: caches, page tables, clock
    frequency and lazily built state have then stopped moving. The time limit holds for ``min_calls`` alone.
    """

    min_calls: int = 1
    max_calls: int = 20
    max_seconds: float = 0.5
    window: int = 3
    tolerance: float = 0.05


@dataclass(frozen=True, slots=True)
class Measurement:
    """Raw samples of one callable, in the order taken; seconds of one call each, whatever the batch was.

    ``first_seconds`` is the very first call, which pays for lazy work (0 without warm-up); ``n_warmup`` counts it.
    """

    samples_seconds: tuple[float, ...]
    stop_reason: str
    n_warmup: int = 0
    first_seconds: float = 0.0
    calls_per_sample: int = 1

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.samples_seconds)

    @property
    def q1_seconds(self) -> float:
        return statistics.quantile(self.samples_seconds, 0.25)

    @property
    def q3_seconds(self) -> float:
        return statistics.quantile(self.samples_seconds, 0.75)

    @property
    def min_seconds(self) -> float:
        return min(self.samples_seconds)

    @property
    def interval_seconds(self) -> Interval:
        """95 % interval of the median from order statistics (its own coverage below six samples)."""
        return statistics.median_interval(self.samples_seconds)

    @property
    def relative_spread(self) -> float:
        """Interquartile range over median."""
        return statistics.relative_spread(self.samples_seconds)


def measure(
    fn: Callable[[], object],
    *,
    stopping: StoppingRule | None = None,
    warmup: Warmup | int = Warmup(),
    clock: Clock | None = None,
) -> Measurement:
    """Times ``fn()`` until ``stopping`` has seen enough.

    A call that is shorter than 100 clock overheads is timed in batches that are not. Python's garbage collector
    waits until the end, so that no sample pays for another's garbage (it is not run before: with torch loaded that
    takes longer than many a measurement). For cold caches ``fn`` itself must turn a
    ``Rotation``, which stays right inside a batch.

    Args:
        stopping: default ``RelativeNoise()``; it is started here.
        warmup: a ``Warmup``, or a fixed number of calls (0 for none).

    Raises:
        Whatever ``fn`` raises.
    """
    rule = stopping if stopping is not None else RelativeNoise()
    clock = clock if clock is not None else system_clock()
    plan = Warmup(min_calls=warmup, max_calls=warmup) if isinstance(warmup, int) else warmup
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        warm = _warm_up(fn, plan, clock)
        batch = _batch(fn, min(warm, default=None), clock)
        samples: list[float] = []
        rule.start()
        begin = clock.now_ns()
        while not rule.done():
            samples.append(mean_seconds(fn, batch, clock))
            rule.add(samples[-1], (clock.now_ns() - begin) * 1e-9)
    finally:
        if was_enabled:
            gc.enable()
    return Measurement(tuple(samples), rule.reason, len(warm), warm[0] if warm else 0.0, batch)


def mean_seconds(fn: Callable[[], object], calls: int, clock: Clock) -> float:
    """Mean seconds of ``calls`` calls, the clock's own share taken off."""
    if calls == 1:
        begin = clock.now_ns()
        fn()
        end = clock.now_ns()
    else:
        turns = range(calls)
        begin = clock.now_ns()
        for _ in turns:
            fn()
        end = clock.now_ns()
    return max(end - begin - clock.overhead_ns, 0.0) * 1e-9 / calls


def _warm_up(fn: Callable[[], object], plan: Warmup, clock: Clock) -> list[float]:
    begin = clock.now_ns()
    seen: list[float] = []
    while len(seen) < plan.max_calls:
        over = (clock.now_ns() - begin) * 1e-9 >= plan.max_seconds
        if len(seen) >= plan.min_calls and (over or _steady(seen, plan)):
            break
        seen.append(mean_seconds(fn, 1, clock))
    return seen


def _steady(seen: list[float], plan: Warmup) -> bool:
    if len(seen) < 2 * plan.window:
        return False
    before = statistics.median(seen[-2 * plan.window : -plan.window])
    now = statistics.median(seen[-plan.window :])
    return abs(before - now) <= plan.tolerance * max(before, now)


def _batch(fn: Callable[[], object], call_seconds: float | None, clock: Clock) -> int:
    """Calls per sample, doubled until a sample is long enough for the clock; 1 for anything slow."""
    if call_seconds is not None and call_seconds >= clock.min_sample_seconds:
        return 1
    calls = 1
    while calls < _MAX_BATCH and mean_seconds(fn, calls, clock) * calls < clock.min_sample_seconds:
        calls *= 2
    return calls
