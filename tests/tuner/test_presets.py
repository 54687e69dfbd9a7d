"""The solver against what other tools would do, priced alike."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from kbench.core import CPU, Device, Problem, work
from kbench.model import embedded, first_layers
from kbench.tuner import TuneRequest, load_profile, make_plan, workload
from kbench.tuner.availability import Availability
from kbench.tuner.cost_model import Cost, Roof
from kbench.tuner.layout import Layout
from kbench.tuner.packed import stored_bytes
from kbench.tuner.placement import solve
from kbench.tuner.presets import presets
from kbench.tuner.visits import Part

GPU = Device("cuda", 0)


class Costs:
    """A round CPU and a GPU of a profile that has a kernel for everything; noise of ``spread`` by problem."""

    threads = (1,)

    def __init__(self, seed: int, spread: float) -> None:
        self.seed, self.spread, self.profile = seed, spread, load_profile("rtx4090")
        self.availability, self.roof = Availability(), Roof()
        self.known: dict[tuple[Problem, Device], Cost] = {}

    def cost(self, problem: Problem, device: Device, threads: int) -> Cost | None:
        if (problem, device) not in self.known:
            self.known[problem, device] = self.price(problem, device)
        return self.known[problem, device]

    def price(self, problem: Problem, device: Device) -> Cost:
        size = work(problem)
        if device == CPU:
            seconds = 3e-6 + max((size.weight_bytes + size.cache_bytes) / 60e9, size.flops / 1e12)
        else:
            seconds = self.profile.seconds(size)
        seconds *= random.Random(f"{self.seed} {problem.key} {device}").uniform(1, 1 + self.spread)
        return Cost(seconds, seconds, seconds, "modelled", "made-up")

    def part(self, problem: Problem, device: Device, threads: int, part: Part) -> Cost | None:
        return self.cost(problem, device, threads).scaled(part.distinct)

    def transfer(self, n_bytes: float, *devices: Device) -> Cost:
        seconds = self.profile.transfer_seconds(n_bytes)
        return Cost(seconds, seconds, seconds, "modelled", "copy")

    def weight_bytes(self, problem: Problem, device: Device, threads: int) -> int:
        return sum(stored_bytes(problem).values())

    def best_threads(self, problems: Any) -> int:
        return 1


def layout_of(model: str, n_layers: int, seed: int, spread: float) -> Layout:
    request = TuneRequest(context=2048)
    plan = make_plan(first_layers(embedded(model), n_layers), request, workload(request))
    return Layout(plan, Costs(seed, spread), (CPU, GPU))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "n_layers", "spread"),
    [("deepseek-v2-chat", 8, 0.0), ("deepseek-v2-lite-chat", 6, 3.0), ("qwen3-30b-a3b", 8, 0.5)],
)
def test_no_rule_of_thumb_is_faster(model: str, n_layers: int, spread: float) -> None:
    layout = layout_of(model, n_layers, 1, spread)
    total = layout.plan.descriptor.n_bytes
    beaten = set()
    unlimited = layout.problem((1 << 62, 1 << 62))
    for share in (0.05, 0.3, 0.8):
        problem = replace(unlimited, capacity=(1 << 62, int(share * total)))
        best = solve(problem)
        assert best is not None
        for name, rival in presets(layout, problem).items():
            assert all(n <= c for n, c in zip(rival.used_bytes, problem.capacity, strict=True))
            assert best.seconds <= rival.seconds * (1 + 1e-9), (name, share)
            if best.seconds < 0.99 * rival.seconds:
                beaten.add(name)
    assert beaten >= {"whole layers", "front loading"}


def test_presets_are_what_their_tools_make() -> None:
    layout = layout_of("deepseek-v2-lite-chat", 5, 1, 0.0)
    layer = max(column.n_bytes[1] for column in layout.problem((0, 0)).types[2])
    problem = layout.problem((1 << 62, int(2.5 * layer)))
    found = presets(layout, problem)
    # By layers that are on the GPU as a whole: what is behind them, before them, none.
    whole = {name: [set(c.devices) == {1} for c in solution.columns] for name, solution in found.items()}
    assert whole["whole layers"][-1] and not whole["whole layers"][1] and not whole["whole layers"][0]
    assert whole["front loading"][1] and not whole["front loading"][-1]
    kinds = [[unit.kind for unit in stage.units] for stage in layout.stages]
    for name in ("n-cpu-moe", "attention first"):
        for of, column in list(zip(kinds, found[name].columns, strict=True))[1:]:
            placed = dict(zip(of, column.devices, strict=True))
            assert all(device == 1 for kind, device in placed.items() if kind != "routed experts")
    experts = [
        dict(zip(of, column.devices, strict=True)).get("routed experts")
        for of, column in zip(kinds, found["n-cpu-moe"].columns, strict=True)
    ]
    assert experts[2] == 0 and experts[-2] == 1


def test_a_gpu_without_kernels_for_experts_has_presets_too() -> None:
    layout = layout_of("deepseek-v2-lite-chat", 4, 1, 0.0)
    original = layout.costs.cost
    layout.costs.cost = lambda p, d, t: None if p.op == "moe_experts" and d == GPU else original(p, d, t)  # type: ignore[method-assign]
    problem = layout.problem((1 << 62, 1 << 62))
    best = solve(problem)
    assert best is not None
    found = presets(layout, problem)
    assert len(found) == 4 and all(best.seconds <= rival.seconds * (1 + 1e-9) for rival in found.values())
