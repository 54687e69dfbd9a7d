"""Each rule stops where it should on made-up series, and says why."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest

from kbench.measure import FixedCount, RelativeNoise, StoppingRule, TimeBudget


def feed(rule: StoppingRule, series: Iterable[float], gap_seconds: float = 0.0) -> int:
    """Samples taken until the rule stops; the gap is what passes between samples."""
    rule.start()
    assert not rule.done() and rule.reason == ""
    elapsed = 0.0
    for n, sample in enumerate(series, start=1):
        elapsed += sample + gap_seconds
        rule.add(sample, elapsed)
        if rule.done():
            assert rule.reason
            return n
        assert rule.reason == ""
    raise AssertionError("the rule never stopped")


def normal(relative_sd: float, seed: int = 0, centre: float = 1e-3) -> Iterable[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield float(centre * np.exp(relative_sd * rng.standard_normal()))


def test_equal_samples_stop_at_the_least_count() -> None:
    rule = RelativeNoise(target=0.01, min_samples=10)
    assert feed(rule, itertools.repeat(1e-3)) == 10
    assert rule.reason.startswith("precise")


@pytest.mark.parametrize("seed", range(5))
def test_little_noise_stops_precise_and_more_noise_takes_more(seed: int) -> None:
    few = feed(RelativeNoise(target=0.01, max_seconds=1e9), normal(0.005, seed))
    rule = RelativeNoise(target=0.01, max_seconds=1e9, max_samples=100_000)
    many = feed(rule, normal(0.03, seed))
    assert few < many
    assert rule.reason.startswith(("precise", "settled"))


def test_heavy_but_steady_noise_stops_settled() -> None:
    rule = RelativeNoise(target=0.0001, max_samples=100_000, max_seconds=1e9)
    assert feed(rule, normal(0.2)) < 5000
    assert rule.reason.startswith("settled")


def test_two_modes_are_not_taken_for_precise() -> None:
    rng = np.random.default_rng(0)
    modes = (float(rng.choice([1e-3, 2e-3])) for _ in itertools.count())
    rule = RelativeNoise(target=0.01, max_samples=60, max_seconds=1e9)
    assert feed(rule, modes) == 60
    assert rule.reason.startswith("samples")


def test_a_drift_runs_into_a_limit_and_not_into_precise() -> None:
    rule = RelativeNoise(target=0.01, max_samples=300, max_seconds=1e9)
    assert feed(rule, (1e-3 * 1.02**i for i in itertools.count())) > 60
    assert not rule.reason.startswith("precise")


def test_one_outlier_changes_nothing() -> None:
    plain = feed(RelativeNoise(), normal(0.003))
    series = itertools.chain([1.0], normal(0.003))  # a thousand times the median, still within the time
    assert feed(RelativeNoise(), series) <= plain + 5


def test_time_stops_even_below_the_least_count() -> None:
    rule = RelativeNoise(min_samples=10, max_seconds=2.0)
    assert feed(rule, itertools.repeat(1.5)) == 2
    assert rule.reason.startswith("time") and "2 samples" in rule.reason


def test_fixed_count_and_time_budget() -> None:
    rule = FixedCount(7)
    assert feed(rule, normal(1.0)) == 7 and rule.reason.startswith("count")
    budget = TimeBudget(1.0, min_samples=3)
    assert feed(budget, itertools.repeat(0.1)) in (10, 11) and budget.reason.startswith("time")
    assert feed(TimeBudget(1.0, min_samples=3), itertools.repeat(5.0)) == 3
    assert feed(TimeBudget(0.0), itertools.repeat(5.0)) == 1
    assert feed(TimeBudget(1.0), itertools.repeat(0.01), gap_seconds=0.09) in (10, 11)


@pytest.mark.parametrize("rule", [RelativeNoise(), FixedCount(12), TimeBudget(0.05)])
def test_a_rule_can_be_used_again(rule: StoppingRule) -> None:
    assert feed(rule, normal(0.01)) == feed(rule, normal(0.01))


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="min_samples"):
        RelativeNoise(min_samples=5)
    with pytest.raises(ValueError, match="max_samples"):
        RelativeNoise(min_samples=10, max_samples=9)
    with pytest.raises(ValueError, match="at least one"):
        FixedCount(0)
