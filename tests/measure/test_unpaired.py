"""Verdicts from blocks of other times: what is found, what is left open, and how often a call is a false one."""

from __future__ import annotations

import math
import random

import pytest

from kbench.measure import Plan, between_runs, judge_unpaired


def blocks(rng: random.Random, centre: float, n: int = 5, deviation: float = 0.01) -> list[float]:
    """A run: the machine's state of that time, then blocks around it."""
    state = rng.gauss(0, 0.025)
    return [centre * math.exp(state + rng.gauss(0, deviation)) for _ in range(n)]


def test_a_large_change_is_found_in_both_directions_and_a_small_one_is_left_open() -> None:
    rng = random.Random(1)
    a = blocks(rng, 0.010)
    assert judge_unpaired(a, blocks(rng, 0.013), Plan()).verdict.value == "REGRESSED"
    assert judge_unpaired(a, blocks(rng, 0.007), Plan()).verdict.value == "IMPROVED"
    small = judge_unpaired(a, [value * 1.04 for value in a], Plan())
    assert small.verdict.value == "INCONCLUSIVE" and "2.5% a run" in small.reason and small.n_pairs == 0
    assert small.interval.low < 1.04 < small.interval.high and small.interval.high / small.interval.low > 1.10


def test_a_quiet_machine_that_is_known_to_be_quiet_can_say_that_nothing_changed() -> None:
    rng = random.Random(2)
    a, b = ([0.01 * (1 + rng.gauss(0, 0.002)) for _ in range(6)] for _ in range(2))
    assert judge_unpaired(a, b, Plan(), between=0.003).verdict.value == "SAME"
    assert judge_unpaired(a, b, Plan()).verdict.value == "INCONCLUSIVE"


def test_single_blocks_are_unsure_of_themselves() -> None:
    one, many = judge_unpaired([0.01], [0.0113], Plan()), judge_unpaired([0.01] * 6, [0.0113] * 6, Plan())
    assert one.interval.high - one.interval.low > many.interval.high - many.interval.low
    assert one.verdict.value == "INCONCLUSIVE" and many.verdict.value == "REGRESSED"
    with pytest.raises(ValueError, match="positive times"):
        judge_unpaired([], [1.0], Plan())


def test_calls_are_rare_where_nothing_changed() -> None:
    """300 runs of 20 cases whose state they share: a call is one of its 20 cases'. By Bonferroni 5 % at most."""
    rng, plan, wrong = random.Random(3), Plan(n_comparisons=20), 0
    for _ in range(300):
        wrong += judge_unpaired(blocks(rng, 0.01), blocks(rng, 0.01), plan).verdict.is_call
    assert wrong <= 3  # 0.05 / 20 of 300 would be less than one


def test_several_comparisons_share_the_error_rate() -> None:
    a, b = [0.01] * 5, [0.0112] * 5
    assert judge_unpaired(a, b, Plan()).verdict.value == "REGRESSED"
    alone = judge_unpaired(a, b, Plan(n_comparisons=50))
    assert alone.verdict.value == "INCONCLUSIVE" and "not among 50" in alone.reason


def test_the_deviation_between_runs_is_estimated_from_enough_of_them() -> None:
    rng = random.Random(4)
    cases = [[blocks(rng, 0.01, deviation=0.0) for _ in range(40)] for _ in range(5)]
    assert between_runs(cases) == pytest.approx(0.025, rel=0.15)
    assert between_runs([case[:4] for case in cases]) is None and between_runs([]) is None
