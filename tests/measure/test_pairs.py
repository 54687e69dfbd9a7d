"""Pairs on a clock that the test turns."""

from __future__ import annotations

import pytest

from kbench.measure import Clock, measure_pairs


class Bench:
    """Two functions and a clock: A takes 10 ms, B ``b_ms``; from call ``slow_from`` on both take three times that."""

    def __init__(self, b_ms: float = 5, slow_from: int = 1 << 30) -> None:
        self.now, self.order, self.b_ms, self.slow_from = 0, "", b_ms, slow_from

    def _call(self, name: str, ms: float) -> None:
        slow = 3 if len(self.order) >= self.slow_from else 1
        self.order += name
        self.now += round(ms * 1e6) * slow

    def a(self) -> None:
        self._call("a", 10)

    def b(self) -> None:
        self._call("b", self.b_ms)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now, 0.0)


def test_the_order_alternates() -> None:
    bench = Bench(b_ms=10)
    taken = measure_pairs(bench.a, bench.b, min_pairs=4, max_pairs=4, clock=bench.clock)
    assert bench.order == "aabb" + "abbaabba"  # two calls each to know how long they take
    assert len(taken.ratios) == 4


def test_a_machine_that_slows_down_slows_both() -> None:
    bench = Bench(slow_from=20)
    taken = measure_pairs(bench.a, bench.b, clock=bench.clock)
    assert taken.ratio == pytest.approx(2)
    assert taken.interval.low == pytest.approx(2) and taken.interval.high == pytest.approx(2)
    assert max(taken.a_seconds) == pytest.approx(0.03)


def test_short_calls_are_timed_in_batches() -> None:
    bench = Bench(b_ms=0.5)
    taken = measure_pairs(bench.a, bench.b, min_pairs=2, max_pairs=2, clock=bench.clock)
    assert bench.order.count("b") == 2 + 2 * 20  # 10 ms are 20 calls
    assert taken.b_seconds == pytest.approx([0.0005, 0.0005])


def test_noise_asks_for_more_pairs_and_time_ends_them() -> None:
    bench = Bench()
    lengths = iter([5, 4, 6, 7, 3] * 1000)

    def b() -> None:
        bench._call("b", next(lengths))

    taken = measure_pairs(bench.a, b, min_pairs=12, max_pairs=1000, max_seconds=2, clock=bench.clock)
    assert 60 < len(taken.ratios) < 100  # 25 ms a pair: one call of A, three of B
    assert len(measure_pairs(bench.a, bench.b, clock=bench.clock).ratios) == 12
