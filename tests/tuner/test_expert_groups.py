"""Routed experts in groups, where an engine can run them on both sides: made-up engines, for none here can.

Times against running the schedule for every outcome of chance, the solver against every choice of columns."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import hypergeom
from test_layout import GPU, RandomCosts
from test_presets import Costs

from kbench.core import CPU, Phase, Unsupported
from kbench.model import embedded, first_layers
from kbench.tuner import TuneRequest, make_plan, workload
from kbench.tuner.availability import KBENCH, Availability
from kbench.tuner.column import Column
from kbench.tuner.cost_model import Cost
from kbench.tuner.expert_groups import Fork, group_bounds, outcomes
from kbench.tuner.layout import Layout
from kbench.tuner.placement import PlacementProblem, evaluate, solve
from kbench.tuner.stage import Stage
from kbench.tuner.visits import Visits
from kbench.tuner.vram_curve import phase_seconds

SPLITS = Availability(splits_experts=True)
MODEL = embedded("deepseek-v2-lite-chat")
assert MODEL.moe is not None
EXPERTS, TOP_K = MODEL.moe.experts, MODEL.moe.top_k
UNLIMITED = (1 << 62, 1 << 62)


# Never changed by a test.
@functools.cache
def layout_of(seed: int, availability: Availability = SPLITS, batch: int = 1) -> Layout:
    request = TuneRequest(context=64, batch=batch)
    plan = make_plan(first_layers(MODEL, 2), request, workload(request))
    return Layout(plan, RandomCosts(seed, 0.02, availability), (CPU, GPU))  # type: ignore[arg-type]


def moe_stage(layout: Layout) -> Stage:
    return next(stage for stage in layout.stages if any(unit.kind == "routed experts" for unit in stage.units))


@functools.cache
def moe_columns(layout: Layout) -> Sequence[Column]:
    problem = layout.problem(UNLIMITED)
    return problem.types[problem.chain[layout.stages.index(moe_stage(layout))]]


def test_only_an_engine_that_can_split_gets_columns_for_it() -> None:
    able, whole, unable = (moe_columns(layout_of(1, availability=a)) for a in (SPLITS, Availability(), KBENCH))
    assert {c.split[0] for c in able if c.split} == set(group_bounds(EXPERTS)) == {8, 16, 24, 32, 40, 48, 56}
    assert not any(c.split for c in (*whole, *unable))
    assert [c for c in able if not c.split] == list(whole)


def test_a_split_moves_bytes_and_makes_none() -> None:
    columns = moe_columns(layout_of(1))
    on_host = {c.devices: c for c in columns if not c.split}
    one_expert = 3 * 1408 * 2048
    for column in columns:
        if column.split:
            before, (n, gpu) = on_host[column.devices], column.split
            moved = before.n_bytes[0] - column.n_bytes[0]
            assert gpu == 1 and sum(column.n_bytes) == sum(before.n_bytes)
            assert n * one_expert * 4.5 / 8 <= moved <= n * one_expert * 6.6 / 8  # Q4_K and some Q6_K


def test_the_constants_of_a_fork_tell_every_schedule() -> None:
    rng = random.Random(1)
    layout = layout_of(1)
    stage, split = moe_stage(layout), layout._split
    compared = 0
    for column in moe_columns(layout):
        if column.split and column.split[0] == 8:
            for entry, phase in itertools.product((0, 1), Phase):

                def run(host: float | None, gpu: float | None, at: Any = (column.devices, 1, entry, phase)) -> float:
                    return split._makespan(stage, *at, host, gpu)

                fork = Fork.of(run, True, True)
                for _ in range(5):
                    host, gpu = (rng.choice([0.0, rng.uniform(0, 4), rng.uniform(0, 40)]) for _ in range(2))
                    assert fork.seconds(host, gpu) == pytest.approx(run(host, gpu), rel=1e-9)
                    compared += 1
    assert compared == 64 * 2 * 2 * 5


def test_seconds_are_the_mean_over_how_many_experts_lie_on_the_host() -> None:
    """One token: hypergeometric; each count has a schedule of its own, and without any there is no crossing."""
    layout = layout_of(1)
    stage, costs = moe_stage(layout), layout.costs
    call = next(c for c, _ in layout.calls_of(stage, Phase.DECODE) if c.op == "moe_experts")
    whole = [costs.cost(call.problem, device, 1) for device in (CPU, GPU)]
    assert whole[0] is not None and whole[1] is not None
    for column in moe_columns(layout):
        if column.split and column.split[0] in (8, 48) and sum(column.devices) in (0, 3, 6):
            on_gpu, expected = column.split[0], 0.0
            for n, chance in enumerate(hypergeom(EXPERTS, EXPERTS - on_gpu, TOP_K).pmf(range(TOP_K + 1))):
                host = n / TOP_K * whole[0].seconds if n else None
                gpu = (TOP_K - n) / TOP_K * whole[1].seconds if n < TOP_K else None
                expected += chance * layout._split._makespan(stage, column.devices, 1, 0, Phase.DECODE, host, gpu)
            found = layout.stage_seconds(stage, column.devices, 0, Phase.DECODE, column.split)
            assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_outcomes_are_all_there_is(tokens: int) -> None:
    visits = Visits(TOP_K, np.random.default_rng(2).integers(1, 100, EXPERTS).tolist())
    found = list(outcomes(visits, 24, tokens))
    assert sum(o.chance for o in found) == pytest.approx(1)
    for what in ("visits", "distinct"):
        mean = sum(o.chance * (getattr(o.host, what, 0) + getattr(o.gpu, what, 0)) for o in found)
        # Both sides together do what the whole does; nobody on one side and much on the other are one in a million.
        assert mean == pytest.approx(getattr(visits.whole(tokens), what), rel=0.02)


def test_a_layer_waits_for_the_crossing_until_the_last_expert_has_moved() -> None:
    """The first shares bring little, the last ones most; popular experts bring more than any."""
    layout = priced_by_profile(Visits.uniform(EXPERTS, TOP_K))
    stage = moe_stage(layout)
    times = [decode_seconds(layout, stage, n) for n in (0, *group_bounds(EXPERTS), EXPERTS)]
    gains = [before - after for before, after in itertools.pairwise(times)]
    assert all(gain > 0 for gain in gains) and gains[-1] > 3 * gains[0]
    popular = priced_by_profile(Visits(TOP_K, [1 / (10 + i) for i in range(EXPERTS)]))
    assert all(decode_seconds(popular, stage, n) < 0.98 * times[n // 8] for n in group_bounds(EXPERTS))


def priced_by_profile(visits: Visits) -> Layout:
    request = TuneRequest(context=64)
    plan = make_plan(first_layers(MODEL, 2), request, workload(request))
    plan = replace(plan, visits={"model.layers.1": visits})
    costs = Costs(0, 0.0)
    costs.availability = SPLITS
    costs.transfer = lambda *_: Cost(2e-4, 2e-4, 2e-4, "modelled", "copy")  # type: ignore[method-assign]
    return Layout(plan, costs, (CPU, GPU))  # type: ignore[arg-type]


def decode_seconds(layout: Layout, stage: Stage, on_gpu: int) -> float:
    """With everything on the GPU but for the experts that are not."""
    devices = tuple(int(u.kind != "routed experts" or on_gpu == EXPERTS) for u in stage.units)
    split = (on_gpu, 1) if 0 < on_gpu < EXPERTS else None
    return layout.stage_seconds(stage, devices, 1, Phase.DECODE, split)


def test_the_solver_finds_the_best_of_every_choice_with_groups() -> None:
    """Every choice for every unit and every group: three hundred thousand for each of forty budgets."""
    split = feasible = 0
    for seed in range(4):
        layout = layout_of(seed, batch=1 + 2 * (seed % 2))
        free = layout.problem(UNLIMITED)
        seconds, needed = every_choice(free)
        assert len(seconds) > 290_000
        total = sum(sum(free.types[kind][0].n_bytes) for kind in free.chain)
        rng = random.Random(seed)
        for _ in range(10):
            capacity = (int(total * rng.uniform(0.3, 1.0)), int(total * rng.uniform(0.05, 0.9)))
            problem = replace(free, capacity=capacity)
            found = solve(problem)
            fits = (needed <= np.array(capacity)).all(axis=1)
            expected = seconds[fits].min() if fits.any() else None
            assert (found is None) == (expected is None)
            if found is not None:
                feasible += 1
                assert found.status == "optimal" and found.seconds == pytest.approx(expected, rel=1e-8)
                assert all(n <= c for n, c in zip(found.used_bytes, capacity, strict=True))
                split += any(column.split for column in found.columns)
    assert feasible >= 25 and split >= 5


def every_choice(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """Seconds, and bytes on each of two devices, of all products of columns; nothing is shared."""
    # For each device that the state may lie on: seconds and bytes of every choice so far.
    reached = {problem.first: (np.zeros(1), np.zeros((1, 2)))}
    for kind in problem.chain:
        columns, after = problem.types[kind], {}
        for exit_ in (0, 1):
            parts = []
            for at, (seconds, used) in reached.items():
                mine = [c for c in columns if c.exit == exit_]
                added, more = np.array([c.seconds[at] for c in mine]), np.array([c.n_bytes for c in mine], float)
                together = (used[:, None, :] + more[None, :, :]).reshape(-1, 2)
                parts.append(((seconds[:, None] + added[None, :]).ravel(), together))
            after[exit_] = tuple(np.concatenate([part[i] for part in parts]) for i in (0, 1))
        reached = after
    seconds, needed = (np.concatenate([reached[at][i] for at in (0, 1)]) for i in (0, 1))
    return seconds, needed


def test_the_most_visited_are_the_best_to_move() -> None:
    """Where the GPU is fast, no other set of as many groups is better: every set is tried."""
    rng = np.random.default_rng(3)
    counts = np.sort(rng.integers(1, 1000, 8))[::-1]
    host, gpu, crossing = 1.0, 0.05, 0.4
    odds = Visits(3, np.minimum(counts, counts.sum() / 3)).odds
    choices = list(itertools.combinations(range(8), 3))
    chances = np.array([np.prod(odds[list(choice)]) for choice in choices])
    chances /= chances.sum()

    def seconds(moved: frozenset[int]) -> float:
        n = np.array([sum(expert not in moved for expert in choice) for choice in choices])
        return float(chances @ np.maximum((3 - n) * gpu, (n > 0) * crossing + n * host))

    for m in range(1, 8):
        best = min(map(frozenset, itertools.combinations(range(8), m)), key=seconds)
        assert seconds(frozenset(range(m))) <= seconds(best) * (1 + 1e-12)


def test_a_split_has_no_rule() -> None:
    layout = layout_of(1)
    free = layout.problem(UNLIMITED)
    chosen = [next((c for c in free.types[kind] if c.split), free.types[kind][0]) for kind in free.chain]
    seconds, used = evaluate(free, chosen)
    found = solve(free)
    assert found is not None
    solution = replace(found, columns=tuple(chosen), seconds=seconds, used_bytes=used)
    with pytest.raises(Unsupported, match="1 layers lie on two devices"):
        layout.assignment(solution)
    total = sum(layout.times[phase] * s for phase, s in phase_seconds(layout, solution).items())
    assert total == pytest.approx(seconds, rel=1e-9)
