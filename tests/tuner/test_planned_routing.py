"""A recorded histogram of visits, and what a batch visits: what they change in a plan, and what they must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_records import record_of, records
from tiny_models import make_tiny

from kbench.core import CPU, Phase, Problem, UserError, expected_experts
from kbench.model import embedded
from kbench.results import Routing, Store, write_routing
from kbench.tuner import TuneRequest, cells, make_plan, replay, workload
from kbench.tuner.bandwidth import WithBandwidth
from kbench.tuner.cost_model import CostModel, Roof
from kbench.tuner.layout import Layout
from kbench.tuner.tune import plan_of
from kbench.tuner.visits import Part

MODEL = "deepseek-v2-lite-chat"
MOE = embedded(MODEL).moe
assert MOE is not None
REQUEST = TuneRequest(model=MODEL, vram_bytes=0, dram_bytes=32 << 30, context=512)


def routing(counts: list[int], layers: range = range(1, 27), **about: Any) -> Routing:
    fields = {"experts": MOE.experts, "top_k": MOE.top_k} | about
    tokens = sum(counts) // fields["top_k"]
    return Routing(
        "m", "Q4_K_M", "random:1", **fields, tokens=tokens, visits=dict.fromkeys(layers, tuple(counts)), about={}
    )


def skewed() -> list[int]:
    """Half of the experts with seven eighths of the visits."""
    return [70] * 32 + [10] * 31 + [10 + 2]  # 2560 + 2 visits: 427 tokens


def even() -> list[int]:
    return [60] * 64


def layout_of(request: TuneRequest, tmp_path: Path, counts: list[int] | None) -> Layout:
    if counts is not None:
        write_routing(tmp_path / "r.json", routing(counts))
        request = replace(request, routing=tmp_path / "r.json")
    plan = plan_of(request)
    roof = Roof({2: 28e9}, {2: 600e9})
    return Layout(plan, CostModel(records(cells(plan, (2,))), threads=(2,), roof=roof), (CPU,))


def experts_seconds(layout: Layout, phase: Phase) -> float:
    call = next(call for call in layout.plan.calls[phase] if call.op == "moe_experts")
    cost = layout.cost(call, CPU)
    assert cost is not None
    return cost.seconds


def test_even_visits_change_nothing(tmp_path: Path) -> None:
    for phase in Phase:
        plain, recorded = (experts_seconds(layout_of(REQUEST, tmp_path, c), phase) for c in (None, even()))
        assert recorded == pytest.approx(plain, rel=1e-9)


def test_popular_experts_save_reading_in_a_batch(tmp_path: Path) -> None:
    """One token visits top_k whatever their popularity; several visit fewer different ones."""
    for batch in (1, 8):
        request = replace(REQUEST, batch=batch)
        plain, recorded = (experts_seconds(layout_of(request, tmp_path, c), Phase.DECODE) for c in (None, skewed()))
        shares = [n * MOE.top_k / sum(skewed()) for n in skewed()]
        distinct = sum(1 - (1 - share) ** batch for share in shares)
        assert recorded / plain == pytest.approx(distinct / expected_experts(64, 6, batch), rel=1e-6)
        assert recorded < 0.97 * plain if batch > 1 else recorded == pytest.approx(plain)


def test_a_result_says_what_was_read(tmp_path: Path) -> None:
    write_routing(tmp_path / "r.json", routing(skewed()))
    request = replace(REQUEST, routing=tmp_path / "r.json")
    store = Store(tmp_path / "store")
    store.append(records(cells(plan_of(request), (1, 2))), suite="made-up")
    fields = replay(request, store, "made-up-host", (1, 2)).fields
    assert fields["workload"]["routing"] == routing(skewed()).key
    for row in fields["ops"]:  # what other thread counts would take is priced by the same visits
        assert row["seconds_by_threads"][str(row["threads"])] == pytest.approx(row["seconds"]), row["op"]
    assert "routing" not in replay(REQUEST, store, "made-up-host", (1, 2)).fields["workload"]


@pytest.mark.parametrize(
    ("about", "layers"), [({"experts": 32}, range(1, 27)), ({"top_k": 4}, range(1, 27)), ({}, range(27))]
)
def test_visits_of_another_model(tmp_path: Path, about: dict[str, int], layers: range) -> None:
    top_k, experts = about.get("top_k", 6), about.get("experts", 64)
    write_routing(tmp_path / "r.json", routing([top_k * 6] * experts, layers, **about))
    with pytest.raises(UserError, match="26 layers of 64 experts, 6 a token"):
        plan_of(replace(REQUEST, routing=tmp_path / "r.json"))


def test_a_model_without_experts_has_no_visits() -> None:
    request = TuneRequest(context=64)
    with pytest.raises(UserError, match="--routing"):
        make_plan(make_tiny("llama"), request, workload(request), routing(even()))


@pytest.mark.parametrize(("batch", "told"), [(4, None), (4, 20), (16, None)])
def test_a_batch_is_priced_with_the_experts_that_chance_makes_it_visit(batch: int, told: float | None) -> None:
    """Few tokens are measured with different experts for each; by chance some meet."""
    problem = next(p for p in plan_of(replace(REQUEST, batch=batch)).problems if p.op == "moe_experts")
    assert problem.integer("tokens") in (batch, 256)
    problem = problem.replace(tokens=batch)
    record = record_of(problem, "cpu.avx2", 1, **({"extra": {"distinct_experts": told}} if told else {}))
    cost = CostModel([record], threads=(1,)).cost(problem, CPU, 1)
    assert cost is not None and record.median is not None
    expected = expected_experts(64, 6, batch)
    # Sixteen times six visits are more than there are experts: those were measured as chance has it.
    measured = told or (24 if batch == 4 else expected)
    # Without a roof nothing says that reading is what takes the time: fewer experts then count for nothing less.
    share = max(1.0, expected / measured)
    assert cost.seconds == pytest.approx(record.median * share)
    roofed = CostModel([record], threads=(1,), roof=Roof({1: 1e9}, {1: 1e15})).cost(problem, CPU, 1)
    assert roofed is not None
    assert roofed.seconds == pytest.approx(max(record.median * expected / measured, roofed.seconds))
    assert roofed.seconds >= Roof({1: 1e9}, {1: 1e15}).seconds(problem, 1)


def test_every_prompt_of_a_batch_is_read() -> None:
    one, four = (workload(replace(REQUEST, batch=batch)).times for batch in (1, 4))
    assert four[Phase.PREFILL] == 4 * one[Phase.PREFILL] and four[Phase.DECODE] == one[Phase.DECODE]


def test_more_bandwidth_shortens_what_waits_for_memory() -> None:
    reading = Problem.make("linear", quant="Q4_K", n=4096, k=4096, tokens=1)
    computing = reading.replace(tokens=512)
    roof = Roof({1: 14e9}, {1: 120e9})
    costs = CostModel([record_of(p, "cpu.avx2", 1) for p in (reading, computing)], threads=(1,), roof=roof)
    faster = WithBandwidth(costs, 14e9)
    before, after = (costs.cost(reading, CPU, 1), faster.cost(reading, CPU, 1))
    assert before is not None and after is not None
    bytes_seconds = 4096 * 4096 * 144 / 256 / 14e9
    assert before.seconds - after.seconds == pytest.approx(bytes_seconds / 2)
    assert faster.cost(computing, CPU, 1) == costs.cost(computing, CPU, 1)
    experts = Problem.make(
        "moe_experts",
        experts=64,
        top_k=6,
        n=1536,
        k=2048,
        tokens=1,
        quant_gate="Q4_K",
        quant_up="Q4_K",
        quant_down="Q6_K",
    )
    costs = CostModel([record_of(experts, "cpu.avx2", 1)], threads=(1,), roof=roof)
    half = Part(0.5, 0.5, 0.0)
    slow, fast = (c.part(experts, CPU, 1, half) for c in (costs, WithBandwidth(costs, 14e9)))
    assert slow is not None and fast is not None and 0.5 < fast.seconds / slow.seconds < 0.55
