"""A layer's experts in two parts: what each adds up is together the layer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kbench.core import CPU, Problem, Unsupported, UserError
from kbench.kernels import accuracy_of, best, check, example, expert_subset, implementation, pairs_here
from kbench.kernels.triton.experts import FEW_TOKENS, KEPT_EXPERT_TILES, expert_tile, most_tiles

TYPES = {"quant_gate": "Q4_0", "quant_up": "Q8_0", "quant_down": "Q5_0"}
PARTS = [((5, 0, 3), (1, 2, 4)), ((4,), (0, 1, 2, 3, 5))]  # a token visits three: more than the second's first part has


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", [best(Problem.make("silu_mul", n=32, tokens=1), CPU), "torch", "reference"])
@pytest.mark.parametrize("tokens", [1, 12])
def test_two_parts_are_the_layer(tokens: int, name: str, parts: tuple[tuple[int, ...], ...]) -> None:
    problem = Problem.make("moe_experts", experts=6, top_k=3, n=64, k=64, tokens=tokens, **TYPES)
    made = example(problem, np.random.default_rng(4), bias=True)
    x, ids, scores = made.inputs
    item = implementation(name)
    y = np.zeros_like(x)
    for part in parts:
        weights = [expert_subset(weight, part) for weight in made.weights]
        assert [weight.shape[-1] for weight in weights] == [len(part)] * 6
        of_part = problem.replace(experts=len(part))
        inputs = (x, *pairs_here(part, ids, scores))  # type: ignore[arg-type]
        call = dataclasses.replace(made.call, problem=of_part)
        y = y + item.run(call, item.prepare(of_part, weights), inputs, made.state, 1)[0]
    found = check(made.call, made.weights, made.inputs, made.state, [y], accuracy_of(item, problem))
    assert found.ok, found.reason


@pytest.mark.parametrize("name", ["torch", "reference"])
def test_masked_calls_leave_out_what_is_not_there(name: str) -> None:
    problem = Problem.make("moe_experts", experts=6, top_k=3, n=64, k=64, tokens=12, **TYPES)
    made = example(problem, np.random.default_rng(4), bias=True)
    item, y = implementation(name), np.zeros_like(made.inputs[0])
    for part in PARTS[0]:
        call = dataclasses.replace(made.call, attrs={"experts": part, "masked": 1})
        weights = [expert_subset(weight, part) for weight in made.weights]
        out = item.run(call, item.prepare(problem, weights), made.inputs, made.state, 1)
        found = check(call, weights, made.inputs, made.state, out, accuracy_of(item, problem))
        assert found.ok, found.reason
        y = y + out[0]
    found = check(made.call, made.weights, made.inputs, made.state, [y], accuracy_of(item, problem))
    assert found.ok, found.reason


def test_native_kernels_refuse_a_mask() -> None:
    problem = Problem.make("moe_experts", experts=6, top_k=3, n=64, k=64, tokens=1, **TYPES)
    made, item = example(problem, np.random.default_rng(4)), implementation(best(problem, CPU))
    call = dataclasses.replace(made.call, attrs={"experts": (1, 2), "masked": 1})
    weights = [expert_subset(weight, (1, 2)) for weight in made.weights]
    with pytest.raises(Unsupported, match="no mask"):
        item.run(call, item.prepare(problem, weights), made.inputs, made.state, 1)


def test_what_lies_elsewhere_is_left_out() -> None:
    ids = np.array([[4, 1, 7], [7, 0, 6], [1, 4, 0]], np.int32)
    scores = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    places, weighed = pairs_here((1, 4), ids, scores)
    assert places.tolist() == [[1, 0, -1], [-1, -1, -1], [0, 1, -1]]
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
