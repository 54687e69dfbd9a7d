"""Chances of visits against enumerating every choice of experts, and against scipy's hypergeometric distribution."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import hypergeom

from kbench.core import expected_experts
from kbench.tuner.visits import Visits


def skewed(experts: int, top_k: int, seed: int) -> Visits:
    """As 500 tokens visited them that like some experts better than others."""
    rng = np.random.default_rng(seed)
    scores = rng.gumbel(size=(500, experts)) + 1.5 * rng.normal(size=experts)
    return Visits(top_k, np.bincount(np.argsort(scores, axis=1)[:, -top_k:].ravel(), minlength=experts) + 1)


def every_choice(visits: Visits) -> list[tuple[tuple[int, ...], float]]:
    """Each choice of ``top_k`` experts with its probability, the product of odds over the sum of all products."""
    choices = list(itertools.combinations(range(visits.experts), visits.top_k))
    weights = np.array([np.prod(visits.odds[list(choice)]) for choice in choices])
    return list(zip(choices, weights / weights.sum(), strict=True))


@pytest.mark.parametrize(("experts", "top_k"), [(160, 6), (8, 2), (5, 1), (64, 8)])
def test_even_visits_are_hypergeometric(experts: int, top_k: int) -> None:
    visits = Visits.uniform(experts, top_k)
    for m in (1, experts // 3, experts - 1):
        expected = hypergeom(experts, experts - m, top_k).pmf(np.arange(top_k + 1))
        np.testing.assert_allclose(visits.chances(m), expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(("experts", "top_k", "seed"), [(7, 3, 1), (9, 2, 2), (6, 1, 3), (10, 4, 4), (5, 4, 5)])
def test_skewed_visits_are_what_was_seen(experts: int, top_k: int, seed: int) -> None:
    visits = skewed(experts, top_k, seed)
    assert np.ptp(visits.shares) > 0.1 and visits.shares.sum() == pytest.approx(top_k, rel=1e-6)
    choices = every_choice(visits)
    seen = [sum(chance for choice, chance in choices if expert in choice) for expert in range(experts)]
    np.testing.assert_allclose(seen, visits.shares, atol=1e-6)
    for m in range(experts + 1):
        counts = np.zeros(top_k + 1)
        for choice, chance in choices:
            counts[sum(expert >= m for expert in choice)] += chance
        np.testing.assert_allclose(visits.chances(m), counts, atol=1e-9)


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_parts_are_means_over_every_choice(tokens: int) -> None:
    """Of one token and, independently, the next: what a part of the experts has when it has anything."""
    visits = skewed(6, 2, 7)
    choices, m = every_choice(visits), 2
    drawn = np.random.default_rng(1).choice(len(choices), size=(60_000, tokens), p=[chance for _, chance in choices])
    masks = np.array([sum(1 << expert for expert in choice) for choice, _ in choices])[drawn]
    union = np.bitwise_or.reduce(masks, axis=1)
    hot_mask = (1 << m) - 1
    for part, mask in ((visits.hot(tokens, m), hot_mask), (visits.cold(tokens, m), 63 & ~hot_mask)):
        distinct, visited = np.bitwise_count(union & mask), np.bitwise_count(masks & mask).sum(axis=1)
        somebody = distinct > 0
        # Four standard errors of a mean of 60 000.
        assert part.nobody == pytest.approx(1 - somebody.mean(), abs=0.01)
        whole = expected_experts(6, 2, tokens)
        assert part.distinct * whole == pytest.approx(distinct[somebody].mean(), rel=0.02)
        assert part.visits * tokens * 2 == pytest.approx(visited[somebody].mean(), rel=0.02)


@pytest.mark.parametrize("tokens", [1, 4, 256])
def test_all_experts_of_even_visits_are_what_work_counts(tokens: int) -> None:
    even, few = Visits.uniform(160, 6), Visits(6, [10.0] * 20 + [1.0] * 140)
    assert even.distinct(tokens) == pytest.approx(expected_experts(160, 6, tokens))
    assert even.whole(tokens).distinct == pytest.approx(1.0) and even.whole(tokens).nobody == 0
    # Popular experts are visited again and again: fewer different ones, but for the one token that has no two visits.
    share = few.whole(tokens).distinct
    assert share == pytest.approx(1.0) if tokens == 1 else share < {4: 0.97, 256: 1.0}[tokens]


def test_an_expert_that_everybody_visits_and_one_that_nobody_does() -> None:
    visits = Visits(2, [100, 60, 40, 0])
    assert visits.chances(1)[2] == pytest.approx(0, abs=1e-6)  # one of the two is always the first
    assert visits.chances(3)[0] == pytest.approx(1)
    np.testing.assert_allclose(visits.chances(2), [0.6, 0.4, 0.0], atol=1e-6)


def test_experts_that_everybody_visits_leave_nothing_to_chance() -> None:
    visits = Visits(2, [7, 7, 0, 0])
    assert [visits.chances(m).tolist() for m in (0, 1, 2, 3)] == [[0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("shares", [[1.0, 0.0, 0.0], [3.0, 1.0, 1.0], [1.0, -1.0, 2.0], [float("nan"), 1.0, 1.0]])
def test_shares_that_cannot_be(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="visits to 3 experts, 2 a token"):
        Visits(2, shares)


def test_the_mean_of_layers() -> None:
    one, other = Visits(2, [3, 2, 2, 1]), Visits(2, [1, 2, 3, 2])
    np.testing.assert_allclose(one.mean([other]).shares, (one.shares + other.shares) / 2)
