"""Verdicts: what each needs, that a call is confirmed, and error rates on simulated series."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from kbench.measure import Judgement, Plan, Verdict, decide, decide_together, geometric_mean, judge, judge_mean

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from verdict_rates import NOISES, customary, verdicts

SPREAD = [0.001 * i for i in range(-5, 5)]  # ten pairs, half a percent to either side


def shifted(percent: float) -> list[float]:
    return [value + math.log1p(percent / 100) for value in SPREAD]


@pytest.mark.parametrize(
    ("percent", "verdict"),
    [
        (10, "REGRESSED"), (-10, "IMPROVED"), (0.1, "SAME"), (-1, "SAME"),
        (3.2, "REGRESSED"), (-3.2, "IMPROVED"),  # the interval reaches into the margin, and leaves 0 out
        (2.8, "INCONCLUSIVE"), (-2.8, "INCONCLUSIVE"),
    ],
)  # fmt: skip
def test_a_call_needs_a_change_and_an_estimate_beyond_the_margin(percent: float, verdict: str) -> None:
    found = judge(shifted(percent), Plan())
    assert found.verdict.value == verdict
    assert found.ratio == pytest.approx(1 + percent / 100, rel=2e-3)
    assert found.interval.low < found.ratio < found.interval.high and found.interval.confidence >= 0.95


def test_a_smaller_margin_makes_a_call_of_the_same_pairs() -> None:
    assert judge(shifted(2), Plan(margin=0.03)).verdict is Verdict.SAME
    assert judge(shifted(2), Plan(margin=0.005)).verdict is Verdict.REGRESSED


def test_many_comparisons_need_more_pairs_for_a_call() -> None:
    alone, among = judge(shifted(10), Plan()), judge(shifted(10), Plan(n_comparisons=50))
    assert alone.p == among.p == pytest.approx(2 / 2**10)
    assert alone.verdict is Verdict.REGRESSED and among.verdict is Verdict.INCONCLUSIVE
    assert "50 comparisons" in among.reason
    assert judge(shifted(10) * 2, Plan(n_comparisons=50)).verdict is Verdict.REGRESSED


class Series:
    """Pairs that were prepared, counted."""

    def __init__(self, *percents: float) -> None:
        self.percents, self.taken = list(percents), 0

    def take(self, n: int) -> list[float]:
        self.taken += n
        percent = self.percents.pop(0) if len(self.percents) > 1 else self.percents[0]
        return [SPREAD[i % 10] + math.log1p(percent / 100) for i in range(n)]


def test_a_call_is_confirmed_by_fresh_pairs() -> None:
    found = decide(Series(10).take, Plan())
    assert found.verdict is Verdict.REGRESSED and found.n_pairs == 12 and len(found.confirmed_by) == 12


def test_a_call_that_fresh_pairs_do_not_show_is_none() -> None:
    fresh = Series(0)
    found = decide(Series(10).take, Plan(looks=(10, 20)), take_fresh=fresh.take)
    assert found.verdict is Verdict.INCONCLUSIVE and "not confirmed" in found.reason
    assert found.n_pairs == 20 and fresh.taken == 30  # at both looks


def test_the_same_needs_no_confirmation() -> None:
    series = Series(0)
    assert decide(series.take, Plan()).verdict is Verdict.SAME and series.taken == 12


def test_pairs_are_added_while_it_is_open_and_until_time_is_over() -> None:
    series = Series(3)
    found = decide(series.take, Plan())
    assert found.verdict is Verdict.INCONCLUSIVE and series.taken == 160
    series = Series(3)
    found = decide(series.take, Plan(), out_of_time=lambda: series.taken >= 24)
    assert series.taken == 24 and "time is over after 24 pairs" in found.reason


def test_two_things_of_the_same_pairs_are_judged_each_for_itself() -> None:
    """The first is known at once; the second at the third look, and the pairs until then leave the first alone."""
    quick, slow = Series(10), Series(3, 3, 3, 20)
    found = decide_together(lambda n: [*zip(quick.take(n), slow.take(n), strict=True)], Plan(n_comparisons=2))
    assert [j.verdict for j in found] == [Verdict.REGRESSED, Verdict.REGRESSED]
    assert found[0].n_pairs == 12 < found[1].n_pairs
    assert found[0].ratio == pytest.approx(1.10, rel=2e-3)


def test_the_looks_share_the_error_rate() -> None:
    plan = Plan()
    assert sum(plan.share(look) for look in range(len(plan.looks))) == pytest.approx(1)
    for looks in ((), (5, 10), (10, 10)):
        with pytest.raises(ValueError, match="looks"):
            Plan(looks=looks)


def test_an_estimate_beyond_the_margin_is_no_call_where_nothing_may_have_changed() -> None:
    found = judge([0.2, -0.1, 0.15, 0.05, -0.05, 0.1, 0.12, -0.08, 0.06, 0.04], Plan())
    assert found.ratio > 1.03 and found.interval.low < 1 and found.verdict is Verdict.INCONCLUSIVE


# 300 series: of a rate of 2 %, more than 13 calls come with probability 0.005; the rates themselves are under 1 %
# (docs/statistics.md).
@pytest.mark.parametrize("name", sorted(NOISES))
def test_a_call_where_nothing_changed_is_rare(name: str) -> None:
    found, _ = verdicts(NOISES[name], 0.0, Plan(), 300, seed=1)
    assert sum(verdict.is_call for verdict in found) <= 6


def test_ten_percent_are_found() -> None:
    slow, _ = verdicts(NOISES["iid normal, 5 %"], 0.10, Plan(), 100, seed=2)
    fast, _ = verdicts(NOISES["AR(1) 0.6, 5 %"], -0.10, Plan(), 100, seed=3)
    assert slow.count(Verdict.REGRESSED) >= 97 and fast.count(Verdict.IMPROVED) >= 97
    assert Verdict.IMPROVED not in slow and Verdict.REGRESSED not in fast


def test_what_it_replaces_calls_a_drift_a_change() -> None:
    assert all(rate > 0.9 for rate in customary(NOISES["drift: 1 % slower a sample"], 50, seed=4, in_turns=False))


def _judgement(rng: np.random.Generator, effect: float, deviation: float) -> Judgement:
    return judge((effect + rng.normal(0, deviation, 12)).tolist(), Plan())


def test_the_geometric_mean_and_its_interval() -> None:
    rng = np.random.default_rng(5)
    effects = [0.3, -0.1, 0.05, 0.0, 0.2, -0.3]
    truth = math.exp(np.mean(effects))
    hits = 0
    for _ in range(400):
        ratio, interval = geometric_mean([_judgement(rng, effect, 0.05) for effect in effects])
        assert interval.low < ratio < interval.high
        hits += interval.low <= truth <= interval.high
    assert hits / 400 >= 0.95 - 0.033  # 3 x sqrt(0.05 x 0.95 / 400)


def test_the_mean_sees_what_no_single_case_shows() -> None:
    rng = np.random.default_rng(6)
    cases = [_judgement(rng, 0.055, 0.15) for _ in range(60)]
    assert sum(case.verdict is Verdict.INCONCLUSIVE for case in cases) > 40
    verdict, ratio, _ = judge_mean(cases, 0.03)
    assert verdict is Verdict.REGRESSED and ratio == pytest.approx(1.055, abs=0.017)  # 3 x 0.15 / sqrt(12 x 60)
    with pytest.raises(ValueError, match="no comparisons"):
        geometric_mean([])
