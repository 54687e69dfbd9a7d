"""Routed experts in groups, for engines that run some of a layer on a GPU: made-up ones, with kernels for them there.

Times against running the schedule for every outcome of chance, the solver against every choice of columns."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import hypergeom
from test_layout import GPU, RandomCosts
from test_presets import Costs
from tiny_models import make_tiny

from kbench.core import AUTO, CPU, Device, GpuExperts, Phase, Problem, parse_yaml, work
from kbench.engine import GREEDY, generate, load_model
from kbench.model import embedded, first_layers, synthesize
from kbench.rules import assign, emit, load_rules, parse_rules
from kbench.tuner import TuneRequest, make_plan, workload
from kbench.tuner.availability import KBENCH, Availability
from kbench.tuner.column import Column
from kbench.tuner.cost_model import Cost
from kbench.tuner.expert_groups import Fork, group_bounds, outcomes
from kbench.tuner.layout import Layout
from kbench.tuner.placement import PlacementProblem, Solution, evaluate, solve
from kbench.tuner.price import price
from kbench.tuner.report import op_rows
from kbench.tuner.stage import Stage
from kbench.tuner.visits import Visits

SPLITS = Availability(splits_experts=True)
MODEL = embedded("deepseek-v2-lite-chat")
assert MODEL.moe is not None
EXPERTS, TOP_K = MODEL.moe.experts, MODEL.moe.top_k
UNLIMITED = (1 << 62, 1 << 62)


class GroupCosts(RandomCosts):
    """Prices out of a hat, but for what tells the host which experts are its own: that is never much."""

    def cost(self, problem: Problem, device: Device, threads: int) -> Cost | None:
        found = super().cost(problem, device, threads)
        return found.scaled(0.01) if found and problem.op == "expert_map" else found


# Never changed by a test.
@functools.cache
def layout_of(seed: int, availability: Availability = SPLITS, batch: int = 1) -> Layout:
    request = TuneRequest(context=64, batch=batch)
    plan = make_plan(first_layers(MODEL, 2), request, workload(request))
    return Layout(plan, GroupCosts(seed, 0.02, availability), (CPU, GPU))  # type: ignore[arg-type]


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

                def run(host: float, gpu: float, at: Any = (column.devices, 1, entry, phase)) -> float:
                    return split._makespan(stage, *at, host, gpu)

                fork = Fork.of(run)
                for _ in range(5):
                    host, gpu = (rng.choice([0.0, rng.uniform(0, 4), rng.uniform(0, 40)]) for _ in range(2))
                    assert fork.seconds(host, gpu) == pytest.approx(run(host, gpu), rel=1e-9)
                    compared += 1
    assert compared == 64 * 2 * 2 * 5


def test_seconds_are_the_mean_over_how_many_experts_lie_on_the_host() -> None:
    """One token: hypergeometric; each count has a schedule of its own."""
    layout = layout_of(1)
    stage, costs = moe_stage(layout), layout.costs
    call = next(c for c, _ in layout.calls_of(stage, Phase.DECODE) if c.op == "moe_experts")
    whole = [costs.cost(call.problem, device, 1) for device in (CPU, GPU)]
    assert whole[0] is not None and whole[1] is not None
    for column in moe_columns(layout):
        if column.split and column.split[0] in (8, 48) and sum(column.devices) in (0, 3, 6):
            on_gpu, expected = column.split[0], 0.0
            for n, chance in enumerate(hypergeom(EXPERTS, EXPERTS - on_gpu, TOP_K).pmf(range(TOP_K + 1))):
                host, gpu = n / TOP_K * whole[0].seconds, (TOP_K - n) / TOP_K * whole[1].seconds
                expected += chance * layout._split._makespan(stage, column.devices, 1, 0, Phase.DECODE, host, gpu)
            found = layout.stage_seconds(stage, column.devices, 0, Phase.DECODE, column.split)
            assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_outcomes_are_all_there_is(tokens: int) -> None:
    visits = Visits(TOP_K, np.random.default_rng(2).integers(1, 100, EXPERTS).tolist())
    found = list(outcomes(visits, 24, tokens))
    assert sum(o.chance for o in found) == pytest.approx(1)
    # Both sides together read what the whole reads, and each computes what it is visited for.
    read = sum(o.chance * (o.host.distinct + o.gpu.distinct) for o in found)
    assert read == pytest.approx(visits.whole(tokens).distinct, rel=1e-6)
    assert sum(o.chance * o.gpu.visits for o in found) == pytest.approx(visits.shares[:24].sum() / TOP_K, rel=1e-6)
    assert sum(o.chance * o.host.visits for o in found) == pytest.approx(visits.shares[24:].sum() / TOP_K, rel=1e-6)


def test_a_layer_waits_for_the_crossing_until_the_last_expert_has_moved() -> None:
    """The first shares bring little, the last ones most; popular experts bring more than any."""
    layout = priced_by_profile(Visits.uniform(EXPERTS, TOP_K))
    stage = moe_stage(layout)
    times = [decode_seconds(layout, stage, n) for n in (0, *group_bounds(EXPERTS), EXPERTS)]
    gains = [before - after for before, after in itertools.pairwise(times)]
    assert all(gain > 0 for gain in gains) and gains[-1] > 3 * gains[0]
    popular = priced_by_profile(Visits(TOP_K, [1 / (10 + i) for i in range(EXPERTS)]))
    ratios = [decode_seconds(popular, stage, n) / times[n // 8] for n in group_bounds(EXPERTS)]
    # With most experts on the GPU it hardly matters any more which.
    assert max(ratios) <= 1 and max(ratios[:4]) < 0.98, ratios


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
        return float(chances @ np.maximum((3 - n) * gpu, crossing + np.maximum(n, 1) * host))

    for m in range(1, 8):
        best = min(map(frozenset, itertools.combinations(range(8), m)), key=seconds)
        assert seconds(frozenset(range(m))) <= seconds(best) * (1 + 1e-12)


class RuleCosts(GroupCosts):
    """Of what rules can name."""

    def cost(self, problem: Problem, device: Device, threads: int) -> Cost | None:
        found = super().cost(problem, device, threads)
        return found and replace(found, implementation=AUTO if device == CPU else "triton")


def split_solution(layout: Layout) -> Solution:
    """With a column that splits its experts for every layer that has any."""
    free = layout.problem(UNLIMITED)
    chosen = [next((c for c in free.types[kind] if c.split), free.types[kind][0]) for kind in free.chain]
    seconds, used = evaluate(free, chosen)
    found = solve(free)
    assert found is not None
    return replace(found, columns=tuple(chosen), seconds=seconds, used_bytes=used)


@pytest.mark.parametrize("visits", [{}, {"model.layers.1": Visits(TOP_K, list(range(1, EXPERTS + 1)))}])
def test_rules_put_the_most_visited_experts_on_the_gpu(visits: dict[str, Visits]) -> None:
    request = TuneRequest(context=64)
    plan = replace(make_plan(first_layers(MODEL, 2), request, workload(request)), visits=visits)
    layout = Layout(plan, RuleCosts(1, 0.02, SPLITS), (CPU, GPU))  # type: ignore[arg-type]
    solution = split_solution(layout)
    assignment = layout.assignment(solution)
    (column,) = [column for column in solution.columns if column.split]
    assert column.split is not None
    experts = range(EXPERTS - column.split[0], EXPERTS) if visits else range(column.split[0])
    assert assignment["model.layers.1.mlp.experts"].gpu_experts == GpuExperts(tuple(experts), GPU, "triton")
    text = emit(assignment, plan.tree)
    assert assign(parse_rules(parse_yaml(text)), plan.tree) == assignment
    assert f"gpu_experts: [{experts[0]}-{experts[-1]}]" in text
    # What was solved for is what is told, and what the rules run has a price, call by call.
    priced = price(layout, solution)
    total = sum(layout.times[phase] * of.seconds for phase, of in priced.items())
    assert total == pytest.approx(solution.seconds, rel=1e-9)
    ops = [(call.op, call.device) for call, cost in priced[Phase.DECODE].calls if cost.seconds > 0]
    assert {("moe_experts", CPU), ("moe_experts", GPU)} <= set(ops) and any(op == "expert_map" for op, _ in ops)
    call = next(c for c, _ in layout.calls_of(moe_stage(layout), Phase.DECODE) if c.op == "moe_experts")
    assert {row["resident_bytes"] for row in op_rows(priced, layout) if row["op"] == "moe_experts"} == {
        work(call.problem.replace(experts=n)).resident_bytes for n in (column.split[0], EXPERTS - column.split[0])
    }


def test_what_the_tuner_writes_the_engine_runs(tmp_path: Path) -> None:
    """A layer split by the tuner's own assignment makes the tokens of one device."""
    descriptor = make_tiny("deepseek2", "Q8_0")
    request = TuneRequest(context=64)
    plan = make_plan(descriptor, request, workload(request))
    layout = Layout(plan, RuleCosts(1, 0.02, SPLITS), (CPU, GPU))  # type: ignore[arg-type]
    text = emit(layout.assignment(split_solution(layout)), plan.tree)
    assert text.count("gpu_experts:") >= 1
    path, rules = tmp_path / "tiny.gguf", tmp_path / "r.yaml"
    synthesize(descriptor, path, seed=4)
    rules.write_text(text)
    options: dict[str, Any] = {"kv": "f32", "context": 64, "threads": 1}
    split, plain = load_model(path, load_rules(rules), alias={GPU: CPU}, **options), load_model(path, **options)
    made = [[token.id for token in generate(s, [5, 17, 3], GREEDY, 8, ignore_eos=True)] for s in (split, plain)]
    assert sum(call.op == "moe_experts" for call in split.decode_calls) == 4
    assert made[0] == made[1]
