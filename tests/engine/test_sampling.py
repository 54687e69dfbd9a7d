"""Sampling against brute force over the whole vocabulary, and its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kbench.core import CheckBroken, UserError
from kbench.engine import GREEDY, Sampler, SamplingParams, softmax

finite_logits = hnp.arrays(
    np.float32, st.integers(1, 60), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)


@given(finite_logits)
def test_softmax_of_any_finite_logits_is_a_distribution(logits: np.ndarray) -> None:
    p = softmax(logits)
    assert np.isfinite(p).all() and (p >= 0).all() and p.sum() == pytest.approx(1)
    assert p[np.argmax(logits)] == p.max()


def brute_force(logits: np.ndarray, params: SamplingParams) -> dict[int, float]:
    """The same steps with full sorts and Python floats."""
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if params.top_k:
        order = order[: params.top_k]
    top = float(logits[order[0]])
    shares = [math.exp(float(logits[i]) - top) for i in order]
    total, kept, reached = sum(shares), [], 0.0
    for i, share in zip(order, shares, strict=True):
        kept.append(i)
        reached += share / total
        if reached >= params.top_p and params.top_p < 1:
            break
    kept = [i for i in kept if math.exp(float(logits[i]) - top) >= params.min_p]
    weights = [math.exp((float(logits[i]) - top) / params.temperature) for i in kept]
    return {i: w / sum(weights) for i, w in zip(kept, weights, strict=True)}


@settings(max_examples=200)
@given(
    # Distinct multiples of 1/8 keep the comparison off the edges where the last bit decides what is kept.
    st.lists(st.integers(-80, 80), min_size=1, max_size=50, unique=True).map(
        lambda xs: np.array(xs, np.float32) / np.float32(8)
    ),
    st.integers(0, 60),
    st.sampled_from([0.31, 0.613, 0.977, 1.0]),
    st.sampled_from([0.0, 0.0501, 0.333]),
    st.sampled_from([0.1, 0.7, 1.0, 3.0]),
)
def test_what_may_be_drawn_is_what_brute_force_says(
    logits: np.ndarray, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=0)
    ids, shares = Sampler(params).probabilities(logits)
    expected = brute_force(logits, params)
    assert set(ids.tolist()) == set(expected)
    np.testing.assert_allclose(shares, [expected[i] for i in ids.tolist()], rtol=1e-9, atol=1e-300)


@given(finite_logits, st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e30]), st.sampled_from([0.5, 1.0, 1.3, 1e30]))
def test_any_finite_logits_give_a_token(logits: np.ndarray, temperature: float, penalty: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature, repetition_penalty=penalty, seed=1))
    assert 0 <= sampler.sample(logits, recent=[0, logits.size - 1]) < logits.size


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7))
    n = 4000
    counts = np.bincount([sampler.sample(logits) for _ in range(n)], minlength=4)
    # Five standard deviations of a binomial count.
    for count, p in zip(counts, [0.5, 0.3, 0.15, 0.05], strict=True):
        assert abs(count - n * p) < 5 * math.sqrt(n * p * (1 - p))


def test_one_seed_gives_one_sequence_and_another_seed_another() -> None:
    logits = np.zeros(1000, np.float32)
    draw = lambda seed: [  # noqa: E731
        s.sample(logits) for s in [Sampler(SamplingParams(top_k=0, top_p=1.0, seed=seed))] for _ in range(20)
    ]
    assert draw(3) == draw(3) != draw(4)


def test_a_seed_that_was_not_given_is_reported_and_repeats() -> None:
    logits = np.zeros(1000, np.float32)
    first = Sampler(SamplingParams(top_k=0, top_p=1.0))
    drawn = [first.sample(logits) for _ in range(10)]
    again = Sampler(SamplingParams(top_k=0, top_p=1.0, seed=first.seed))
    assert drawn == [again.sample(logits) for _ in range(10)]


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert Sampler(GREEDY).sample(np.array([1, 5, 5, 2], np.float32)) == 1


def test_top_k_breaks_ties_in_index_order() -> None:
    ids, _ = Sampler(SamplingParams(top_k=2, top_p=1.0, min_p=0.0, seed=0)).probabilities(np.ones(9, np.float32))
    assert ids.tolist() == [0, 1]


def test_a_penalty_lowers_what_was_said_whatever_its_sign() -> None:
    sampler = Sampler(SamplingParams(temperature=0.0, repetition_penalty=2.0))
    assert sampler.sample(np.array([3.0, 2.0], np.float32), recent=[0]) == 1
    assert sampler.sample(np.array([-1.0, -1.5], np.float32), recent=[0]) == 1
    only_last = Sampler(SamplingParams(temperature=0.0, repetition_penalty=2.0, repetition_window=1))
    assert only_last.sample(np.array([3.0, 2.0], np.float32), recent=[0, 1]) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_logit_is_an_error_never_a_token(bad: float, temperature: float) -> None:
    logits = np.zeros(10, np.float32)
    logits[4] = bad
    with pytest.raises(CheckBroken, match="logit 4"):
        Sampler(SamplingParams(temperature=temperature, seed=0)).sample(logits)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("seed", -1),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UserError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.where == name and caught.value.accepted
