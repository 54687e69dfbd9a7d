"""Several GPUs, uneven ones too; batches; objectives."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from test_presets import Costs

from kbench.core import CPU, Device, Phase, Problem, UserError
from kbench.model import embedded, first_layers
from kbench.tuner import TuneRequest, load_profile, make_plan, parse_vram, workload
from kbench.tuner.budget import budgets
from kbench.tuner.cost_model import CostModel
from kbench.tuner.layout import Layout
from kbench.tuner.placement import evaluate, solve
from kbench.tuner.price import price

GPUS = (Device("cuda", 0), Device("cuda", 1))


def plan_of(n_layers: int, **more: object):  # type: ignore[no-untyped-def]
    request = TuneRequest(context=512, **more)  # type: ignore[arg-type]
    return make_plan(first_layers(embedded("deepseek-v2-lite-chat"), n_layers), request, workload(request))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("21G", 21 << 30),
        ("0", 0),
        ("cuda:0=21G,cuda:1=10G", {GPUS[0]: 21 << 30, GPUS[1]: 10 << 30}),
        ("cuda=8GB", {GPUS[0]: 8 * 10**9}),
    ],
)
def test_budgets_are_read(text: str, found: object) -> None:
    assert parse_vram(text) == found


@pytest.mark.parametrize("text", ["cuda:0=21G,cuda:0=1G", "cpu=3G", "cuda:0=lots", "tpu:0=3G", "cuda:0=1G,5G"])
def test_budgets_that_make_no_sense(text: str) -> None:
    with pytest.raises(UserError):
        parse_vram(text)


def test_each_gpu_has_its_profile() -> None:
    request = TuneRequest(vram_bytes={GPUS[1]: 10 << 30, GPUS[0]: 21 << 30}, dram_bytes=1 << 40, gpu="rtx4090,rtx3060")
    found, profiles = budgets(request, None)
    assert [(b.device, b.total_bytes >> 30) for b in found] == [(CPU, 1024), (GPUS[0], 21), (GPUS[1], 10)]
    assert {device: profile.name for device, profile in profiles.items()} == {GPUS[0]: "rtx4090", GPUS[1]: "rtx3060"}


def test_between_gpus_a_value_passes_through_the_host() -> None:
    profiles = {GPUS[0]: load_profile("rtx4090"), GPUS[1]: load_profile("rtx4060ti")}
    costs = CostModel([], threads=(1,), profiles=profiles)
    fast, slow = (profile.transfer_seconds(1e6) for profile in profiles.values())
    assert costs.transfer(1e6, CPU, GPUS[0]).seconds == fast < slow == costs.transfer(1e6, GPUS[1], CPU).seconds
    assert costs.transfer(1e6, *GPUS).seconds == pytest.approx(fast + slow)


def test_two_uneven_gpus() -> None:
    layout = Layout(plan_of(7), Costs(1, 0.5), (CPU, *GPUS))  # type: ignore[arg-type]
    unlimited = layout.problem((1 << 62,) * 3)
    total = layout.plan.descriptor.n_bytes
    problem = replace(unlimited, capacity=(1 << 62, total // 2, total // 4))
    found = solve(problem)
    assert found is not None and found.status == "optimal"
    assert all(used <= room for used, room in zip(found.used_bytes, problem.capacity, strict=True))
    assert {device for column in found.columns for device in column.devices} >= {1, 2}
    # The lowered model says the same, transfers between all three included.
    prices = price(layout, found)
    assert sum(layout.times[p] * prices[p].seconds for p in Phase) == pytest.approx(found.seconds, rel=1e-9)
    # One GPU of either size is no better, and caches lie where attention runs.
    for rooms in ((1 << 62, total // 2, 0), (1 << 62, 0, total // 4)):
        alone = solve(replace(problem, capacity=rooms))
        assert alone is not None and alone.seconds >= found.seconds
    for stage, column in zip(layout.stages, found.columns, strict=True):
        for unit, device in enumerate(column.devices):
            kv = layout.sizes(stage, unit, layout.devices[device]).kv
            assert (kv > 0) == (stage.units[unit].kind == "attention")


def test_two_layers_on_three_devices_by_brute_force() -> None:
    layout = Layout(plan_of(2), Costs(3, 4.0), (CPU, *GPUS))  # type: ignore[arg-type]
    whole = layout.problem((1 << 62,) * 3)
    total = layout.plan.descriptor.n_bytes
    problem = replace(whole, capacity=(1 << 62, total // 3, total // 5))
    # A stage's best column for each way in, way out and set of devices with at least that much room.
    best = float("inf")
    options = [
        [c for c in kind if all(n <= room for n, room in zip(c.n_bytes, problem.capacity, strict=True))][::3]
        for kind in problem.types
    ]
    small = replace(problem, types=tuple(tuple(kind[:12]) for kind in options))
    for columns in itertools.product(*(small.types[kind] for kind in small.chain)):
        seconds, used = evaluate(small, columns)
        if all(n <= room for n, room in zip(used, small.capacity, strict=True)):
            best = min(best, seconds)
    found = solve(small)
    assert found is not None and found.seconds == pytest.approx(best, rel=1e-9)


def test_a_batch_shares_weights_and_nothing_else() -> None:
    one, four = plan_of(3), plan_of(3, batch=4)
    attention = Problem.parse("mla_attention(heads=16,kv_lora=512,rope=64,kv=f16,tokens=4,context=448)")
    assert four.priced(attention) == (attention.replace(tokens=1), 4)
    layouts = [Layout(plan, Costs(1, 0.0), (CPU, *GPUS)) for plan in (one, four)]  # type: ignore[arg-type]
    kv = [
        sum(layout.sizes(stage, unit, CPU).kv for stage in layout.stages for unit in range(len(stage.units)))
        for layout in layouts
    ]
    assert kv[1] == 4 * kv[0] == 4 * 3 * 512 * 576 * 2
    seconds = [price(layout, solve(layout.problem((1 << 62, 0, 0))))[Phase.DECODE].seconds for layout in layouts]  # type: ignore[arg-type]
    assert seconds[0] < seconds[1] < 4 * seconds[0]


def test_objectives_weigh_the_phases() -> None:
    def times(objective: str) -> tuple[float, float]:
        found = workload(TuneRequest(objective=objective)).times
        return found[Phase.PREFILL], found[Phase.DECODE]

    assert times("workload") == (4, 256) and times("ttft") == (4, 1)
    assert times("decode")[0] < 1e-4 and times("prefill")[1] < 1e-3
    with pytest.raises(UserError, match="did you mean ttft"):
        times("tfft")
