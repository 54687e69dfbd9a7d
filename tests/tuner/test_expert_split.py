"""The published curve of tokens/s over the share of experts on the GPU, once its two ends are fitted."""

from __future__ import annotations

import itertools

import pytest

from kbench.model import embedded
from kbench.tuner.expert_split import SKEW, ExpertSplit, hit_rate

# KTransformers, doc/en/kt-kernel/experts-sched-Tutorial.md: Qwen3-Next-80B FP8 on four RTX 4090, ShareGPT, tokens/s by
# share of experts on the GPUs; spread evenly, or the most visited ones. 100 %: 112 to 114.
NONE, ALL = 52.7, 113.0
UNIFORM = {0.1: 56.6, 0.5: 65.3, 0.8: 79.2}
FREQUENCY = {0.1: 58.6, 0.5: 76.2, 0.8: 100.7}

MODEL = embedded("qwen3-next")
assert MODEL.moe is not None
# An expert of 3.1 M one-byte weights, a quarter of it on each card, at 0.8 of 1008 GB/s.
GPU_SECONDS = 3 * MODEL.moe.n * MODEL.d / 4 / (0.8 * 1008e9)
SPLIT = ExpertSplit.fitted(1 / NONE, 1 / ALL, layers=MODEL.n_layers, top_k=MODEL.moe.top_k, gpu=GPU_SECONDS)


def tokens_per_s(share: float, skew: float = 1.0) -> float:
    return 1 / SPLIT.step_seconds(hit_rate(share, skew))


def test_the_ends_are_met() -> None:
    assert tokens_per_s(0.0) == pytest.approx(NONE) and tokens_per_s(1.0) == pytest.approx(ALL)


@pytest.mark.parametrize(("curve", "skew"), [(UNIFORM, 1.0), (FREQUENCY, SKEW)], ids=["uniform", "frequency"])
def test_the_published_curve(curve: dict[float, float], skew: float) -> None:
    for share, published in curve.items():
        assert tokens_per_s(share, skew) == pytest.approx(published, rel=0.15), share


def test_its_shape() -> None:
    """Convex: the last experts bring most. Popular experts bring more than any, at every share."""
    shares = [step / 20 for step in range(21)]
    uniform, popular = ([tokens_per_s(share, skew) for share in shares] for skew in (1.0, SKEW))
    gains = [after - before for before, after in itertools.pairwise(uniform)]
    assert all(gain > 0 for gain in gains) and gains[-1] > 4 * gains[0]
    assert all(more >= less for more, less in zip(popular, uniform, strict=True))


def test_routing_that_was_seen() -> None:
    assert hit_rate(0.525, SKEW) == pytest.approx(0.95, abs=1e-3)
    assert [hit_rate(share) for share in (0.0, 0.3, 1.0)] == pytest.approx([0.0, 0.3, 1.0])


def test_ends_that_leave_no_time_for_work() -> None:
    with pytest.raises(ValueError, match="leave none"):
        ExpertSplit.fitted(0.010, 0.009, layers=48, top_k=10, gpu=1e-6)
