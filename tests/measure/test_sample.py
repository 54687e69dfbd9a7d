"""Sampling on a clock that the test turns: no real time, exact answers."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbench.measure import (
    Clock,
    FixedCount,
    Rotation,
    TimeBudget,
    Warmup,
    calibrate,
    is_cold,
    measure,
    rotation_count,
    system_clock,
)


class Fake:
    """A function and a clock: every reading costs ``overhead_ns``, the n-th call takes ``calls_ns[n]`` (then the last).

    The clock's readings are taken at their end, so a difference of two holds one overhead, as on a real clock.
    """

    def __init__(self, calls_ns: list[int], overhead_ns: int = 50) -> None:
        self.calls_ns, self.overhead_ns = calls_ns, overhead_ns
        self.now, self.n_calls = 0, 0

    def __call__(self) -> None:
        self.now += self.calls_ns[min(self.n_calls, len(self.calls_ns) - 1)]
        self.n_calls += 1

    def now_ns(self) -> int:
        self.now += self.overhead_ns
        return self.now

    @property
    def clock(self) -> Clock:
        return Clock(self.now_ns, self.overhead_ns)


def test_the_samples_are_the_calls_without_the_clock() -> None:
    fake = Fake([1_000_000, 2_000_000, 3_000_000])
    taken = measure(fake, stopping=FixedCount(3), warmup=0, clock=fake.clock)
    # The first call finds out that no batch is needed; without a warm-up it is the only one that is not kept.
    assert taken.samples_seconds == pytest.approx((2e-3, 3e-3, 3e-3), rel=1e-12)
    assert (taken.n_warmup, taken.first_seconds, taken.calls_per_sample) == (0, 0.0, 1)


def test_summaries() -> None:
    fake = Fake([9_000_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000])
    taken = measure(fake, stopping=FixedCount(5), warmup=1, clock=fake.clock)
    assert taken.first_seconds == pytest.approx(9e-3)
    assert (taken.min_seconds, taken.q1_seconds, taken.median_seconds, taken.q3_seconds) == pytest.approx(
        (1e-3, 2e-3, 3e-3, 4e-3)
    )
    assert taken.relative_spread == pytest.approx(2 / 3)
    assert (taken.interval_seconds.low, taken.interval_seconds.high) == pytest.approx((1e-3, 5e-3))
    assert taken.interval_seconds.confidence == pytest.approx(0.9375)


@pytest.mark.parametrize("call_ns", [0, 1, 7, 300, 4999])
def test_short_calls_are_batched_until_the_clock_is_under_one_percent(call_ns: int) -> None:
    fake = Fake([call_ns])
    taken = measure(fake, stopping=FixedCount(3), warmup=2, clock=fake.clock)
    assert taken.samples_seconds == pytest.approx((call_ns * 1e-9,) * 3, abs=1e-15)
    assert taken.calls_per_sample * call_ns >= 100 * fake.overhead_ns or taken.calls_per_sample == 1 << 16
    assert taken.calls_per_sample // 2 * call_ns < 100 * fake.overhead_ns


def test_warm_up_goes_on_until_the_times_are_steady() -> None:
    fake = Fake([2**i * 1_000_000 for i in range(9, 0, -1)] + [1_000_000])
    taken = measure(fake, stopping=FixedCount(4), warmup=Warmup(max_seconds=1e9), clock=fake.clock)
    # Nine that halve, then two windows of three whose medians agree: the first may still hold the last of the nine.
    assert taken.n_warmup == 9 + 5
    assert taken.samples_seconds == pytest.approx((1e-3,) * 4)


def test_warm_up_ends_at_its_limits() -> None:
    never_steady = [i * 1_000_000 for i in range(1, 100)]
    fake = Fake(list(never_steady))
    assert measure(fake, stopping=FixedCount(1), warmup=Warmup(max_calls=8), clock=fake.clock).n_warmup == 8
    slow = Fake([400_000_000])
    assert measure(slow, stopping=FixedCount(1), warmup=Warmup(), clock=slow.clock).n_warmup == 2
    fixed = Fake(list(never_steady))
    assert measure(fixed, stopping=FixedCount(1), warmup=3, clock=fixed.clock).n_warmup == 3


def test_the_rule_is_told_wall_time_not_the_sum_of_samples() -> None:
    fake = Fake([10])  # batched: a sample is 10 ns, but lasts a whole batch
    taken = measure(fake, stopping=TimeBudget(1e-3), warmup=1, clock=fake.clock)
    assert len(taken.samples_seconds) < 200
    assert taken.stop_reason.startswith("time")


def test_the_garbage_collector_is_off_meanwhile_and_back_on_after_an_error() -> None:
    seen = []
    measure(lambda: seen.append(gc.isenabled()), stopping=FixedCount(1))
    assert not any(seen) and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, stopping=FixedCount(1))
    assert gc.isenabled()


def test_a_real_clock_is_calibrated() -> None:
    clock = system_clock()
    assert 0 < clock.overhead_ns < 1e6
    coarse = Fake([], overhead_ns=0)
    turns = iter(range(10**9))
    assert calibrate(lambda: next(turns) // 5 * 1000).overhead_ns == 1000
    assert calibrate(coarse.now_ns).overhead_ns == 1


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 36))
def test_enough_copies_and_not_one_more(n_bytes: int, llc_bytes: int) -> None:
    n = rotation_count(n_bytes, llc_bytes)
    assert n * n_bytes > 2 * llc_bytes and is_cold(n, n_bytes, llc_bytes)
    assert n == 1 or (n - 1) * n_bytes <= 2 * llc_bytes


def test_rotation_count_at_its_edges() -> None:
    assert rotation_count(0, 32 << 20) == 1
    assert rotation_count(64 << 20, 32 << 20) == 2
    assert rotation_count((64 << 20) + 1, 32 << 20) == 1
    assert rotation_count(1 << 20, 32 << 20, cap=10) == 10
    assert rotation_count(1 << 20, 32 << 20, cap=0) == 1
    assert not is_cold(10, 1 << 20, 32 << 20)


def test_rotation_goes_round() -> None:
    rotation = Rotation("abc")
    assert [rotation.next() for _ in range(7)] == list("abcabca")
    assert len(rotation) == 3
    with pytest.raises(ValueError, match="at least one"):
        Rotation([])
