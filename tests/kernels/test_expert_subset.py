"""A layer's experts in two parts: what each adds up is together the layer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kbench.core import CPU, Problem, UserError
from kbench.kernels import accuracy_of, best, check, example, expert_subset, implementation, pairs_here
from kbench.kernels.triton.experts import FEW_TOKENS, KEPT_EXPERT_TILES, expert_tile, most_tiles


@pytest.mark.parametrize("tokens", [1, 12])
def test_two_parts_are_the_layer(tokens: int) -> None:
    types = {"quant_gate": "Q4_0", "quant_up": "Q8_0", "quant_down": "Q5_0"}
    problem = Problem.make("moe_experts", experts=6, top_k=3, n=64, k=64, tokens=tokens, **types)
    made = example(problem, np.random.default_rng(4), bias=True)
    x, ids, scores = made.inputs
    item, half = implementation(best(problem, CPU)), problem.replace(experts=3)
    call = dataclasses.replace(made.call, problem=half)
    y = np.zeros_like(x)
    for part in ((5, 0, 3), (1, 2, 4)):
        weights = [expert_subset(weight, part) for weight in made.weights]
        assert [weight.shape[-1] for weight in weights] == [3] * 6
        inputs = (x, *pairs_here(part, ids, scores))  # type: ignore[arg-type]
        y = y + item.run(call, item.prepare(half, weights), inputs, made.state, 1)[0]
    found = check(made.call, made.weights, made.inputs, made.state, [y], accuracy_of(item, problem))
    assert found.ok, found.reason


def test_what_goes_elsewhere_goes_where_its_token_goes() -> None:
    ids = np.array([[4, 1, 7], [7, 0, 6], [1, 4, 0]], np.int32)
    scores = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    places, weighed = pairs_here((1, 4), ids, scores)
    assert places.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert weighed.tolist() == [[1, 2, 0], [0, 0, 0], [7, 8, 0]]


@pytest.mark.parametrize("experts", [(), (1, 1), (4,), (-1,)])
def test_a_part_that_is_none_is_refused(experts: tuple[int, ...]) -> None:
    problem = Problem.make(
        "moe_experts", experts=4, top_k=1, n=32, k=32, quant_gate="Q4_0", quant_up="Q4_0", quant_down="Q4_0", tokens=1
    )
    weight = example(problem, np.random.default_rng(0)).weights[0]
    with pytest.raises(UserError, match="some of 0 to 3"):
        expert_subset(weight, experts)


def test_no_routing_takes_more_tiles() -> None:
    rng = np.random.default_rng(2)
    most = dict.fromkeys(((pairs, slots) for pairs in (1, 7, 40) for slots in (1, 3, 50)), 0)
    for pairs, slots in most:
        # Some slots get one pair, and one the rest: what takes most.
        cases = [np.bincount(rng.integers(0, slots, pairs), minlength=slots) for _ in range(50)]
        begun = min(pairs, slots)
        cases += [np.array([1] * (begun - 1) + [pairs - begun + 1])]
        tiles = [int((-(-counts // 16)).sum()) for counts in cases]
        assert max(tiles) <= most_tiles(pairs, slots, 16)
        assert tiles[-1] == most_tiles(pairs, slots, 16)


@pytest.mark.parametrize("tokens", [1, FEW_TOKENS, FEW_TOKENS + 1, 100, 512, 4096])
def test_kept_tiles_are_the_ones_that_run(tokens: int) -> None:
    tile = expert_tile(tokens, 6, 160)
    assert tile in KEPT_EXPERT_TILES and (tile.block_m == 1) == (tokens <= FEW_TOKENS)
