"""Stages, columns and the solver against pricing every placement of every unit through the real lowering."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from kbench.core import CPU, Device, Phase, Placement, Problem
from kbench.model import embedded, first_layers, lower
from kbench.tuner import TuneRequest, make_plan, workload
from kbench.tuner.availability import KBENCH, Availability
from kbench.tuner.cost_model import Cost, Roof
from kbench.tuner.layout import Layout
from kbench.tuner.packed import stored_bytes
from kbench.tuner.placement import solve
from kbench.tuner.price import cost_of, price, price_calls
from kbench.tuner.stage import kind_of, stages
from kbench.tuner.visits import Part

GPU = Device("cuda", 0)


class RandomCosts:
    """Prices out of a hat, the same for the same problem and device; experts cannot run on the GPU, unless told."""

    threads = (1,)

    def __init__(self, seed: int, crossing: float, availability: Availability = KBENCH) -> None:
        self.seed, self.crossing, self.availability, self.roof = seed, crossing, availability, Roof()

    def cost(self, problem: Problem, device: Device, threads: int) -> Cost | None:
        if self.availability.why_not(problem.op, device):
            return None
        seconds = random.Random(f"{self.seed} {problem.key} {device}").uniform(0.1, 2.0)
        return Cost(seconds, seconds, seconds, "measured", "made-up")

    def part(self, problem: Problem, device: Device, threads: int, part: Part) -> Cost | None:
        whole = self.cost(problem, device, threads)
        return whole and whole.scaled(part.distinct)

    def transfer(self, n_bytes: float, src: Device, dst: Device) -> Cost:
        seconds = self.crossing * (1 + n_bytes / 1e6)
        return Cost(seconds, seconds, seconds, "modelled", "copy")

    def weight_bytes(self, problem: Problem, device: Device, threads: int) -> int:
        return sum(stored_bytes(problem).values())

    def best_threads(self, problems: Any) -> int:
        return 1


def layout_of(n_layers: int, costs: RandomCosts) -> Layout:
    request = TuneRequest(context=64)
    plan = make_plan(first_layers(embedded("deepseek-v2-lite-chat"), n_layers), request, workload(request))
    return Layout(plan, costs, (CPU, GPU))  # type: ignore[arg-type]


@pytest.mark.parametrize(("seed", "crossing"), [(1, 0.0), (2, 0.05), (3, 1.0)])
def test_the_solver_finds_the_best_of_all_placements(seed: int, crossing: float) -> None:
    layout = layout_of(1, RandomCosts(seed, crossing))
    modules = [unit.modules for stage in layout.stages for unit in stage.units]
    plan = layout.plan
    lengths = {
        Phase.DECODE: (1, plan.workload.decode_context),
        Phase.PREFILL: (plan.workload.chunk, plan.workload.prefill_context),
    }
    best = float("inf")
    for devices in itertools.product((CPU, GPU), repeat=len(modules)):
        places = {
            m: Placement(d, "made-up", d, "made-up") for d, unit in zip(devices, modules, strict=True) for m in unit
        }
        total = 0.0
        for phase, (tokens, context) in lengths.items():
            calls = lower(plan.descriptor, places, phase, tokens, context, resolve=lambda p, d: "made-up")
            total += layout.times[phase] * price_calls(calls, lambda call: cost_of(call, layout)).seconds
        best = min(best, total)
    found = solve(layout.problem((1 << 62, 1 << 62)))
    assert found is not None and found.seconds == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("vram_mib", [0, 40, 120, 400])
def test_the_columns_say_what_the_lowered_model_costs(vram_mib: int) -> None:
    layout = layout_of(4, RandomCosts(vram_mib, 0.02))
    found = solve(layout.problem((1 << 62, vram_mib << 20)))
    assert found is not None and found.used_bytes[1] <= vram_mib << 20
    prices = price(layout, found)
    total = sum(layout.times[phase] * prices[phase].seconds for phase in Phase)
    assert total == pytest.approx(found.seconds, rel=1e-9)


def test_every_module_is_placed_and_experts_stay() -> None:
    layout = layout_of(3, RandomCosts(5, 0.01))
    found = solve(layout.problem((1 << 62, 1 << 62)))
    assert found is not None
    assignment = layout.assignment(found)
    assert set(assignment) == {module.name for module in layout.plan.tree.walk()}
    assert assignment["model.layers.1.mlp.experts"].generate_device == CPU
    rotary = assignment["model.layers.1.self_attn.rotary_emb"]
    assert rotary.generate_device == assignment["model.layers.1.self_attn"].generate_device


def test_a_shared_matrix_counts_once_a_device() -> None:
    request = TuneRequest(context=64)
    model = first_layers(embedded("deepseek-v2-lite-chat"), 1)
    tied = replace(model, tied=True, tensors=tuple(t for t in model.tensors if t.name != "output.weight"))
    layout = Layout(make_plan(tied, request, workload(request)), RandomCosts(1, 0.0), (CPU, GPU))  # type: ignore[arg-type]
    problem = layout.problem((1 << 62, 0))
    assert [name for name, _ in problem.shared_bytes] == ["token_embd.weight"]
    found = solve(problem)
    assert found is not None
    half = 16 * 512 * 128
    kv_cache = 64 * 576 * 2
    assert found.used_bytes[0] == tied.n_bytes + half * 2 + half * 144 // 256 + kv_cache


def test_units_of_a_layer() -> None:
    layout = layout_of(2, RandomCosts(1, 0.0))
    cut = stages(layout.plan.calls[Phase.DECODE])
    assert [stage.name for stage in cut] == ["embedding", "model.layers.0", "model.layers.1", "final norm + lm_head"]
    kinds = {unit.kind for unit in cut[2].units}
    assert kinds == {
        "stream", "q projections", "kv projections", "attention", "o projection", "routed experts", "shared experts",
    }  # fmt: skip
    assert kind_of("model.layers.0.mlp", routed=False) == "dense FFN"
    assert kind_of("model.layers.1.mlp", routed=True) == kind_of("model.layers.1.mlp.gate", routed=True) == "stream"
