"""Bringing a layer's experts to a GPU for prefill: from when on it pays, what the plan makes of it, what rules say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_records import HOST_ID, records

from kbench.core import CPU, Device, Phase, Placement, parse_yaml, work
from kbench.engine import session
from kbench.kernels import block_errors
from kbench.results import Record, Store
from kbench.rules import assign, check, parse_rules
from kbench.tuner import TuneReport, TuneRequest, cells, cost_model, load_profile, replay, workload
from kbench.tuner.availability import KBENCH, Availability
from kbench.tuner.budget import budgets
from kbench.tuner.cost_model import CostModel, Roof
from kbench.tuner.layout import Layout
from kbench.tuner.streaming import STEP_TOKENS, Streaming, streamings
from kbench.tuner.tune import place, plan_of

MODEL = "deepseek-v2-lite-chat"
GPU = Device("cuda", 0)
# Routed experts do not fit the GPU, and a prompt is long: what it is for.
REQUEST = TuneRequest(
    model=MODEL, vram_bytes=6 << 30, dram_bytes=32 << 30, context=8192, prompt_tokens=6000, gen_tokens=16
)
# An engine with kernels for everything.
ABLE = Availability()
# Packing 3 GB takes a second.
PACKING = 3e9


def with_packing(found: list[Record]) -> list[Record]:
    kept = []
    for record in found:
        problem = record.core_problem()
        if problem.op == "linear":
            n_bytes = int(work(problem).resident_bytes)
            record = replace(record, extra={"prepared_bytes": n_bytes, "prepare_seconds": n_bytes / PACKING})
        kept.append(record)
    return kept


def costs_of(request: TuneRequest, availability: Availability, packing: bool = True) -> CostModel:
    plan = plan_of(request)
    found = records(cells(plan, (2,)))
    roof = Roof({2: 28e9}, {2: 600e9})
    known = with_packing(found) if packing else found
    return CostModel(known, threads=(2,), profiles=budgets(request, None)[1], roof=roof, availability=availability)


def placed_of(request: TuneRequest = REQUEST, availability: Availability = ABLE) -> Any:
    available, profiles = budgets(request, None)
    return place(plan_of(request), costs_of(request, availability), available, profiles)


def found_of(request: TuneRequest, availability: Availability = KBENCH, packing: bool = True) -> Streaming:
    costs = costs_of(request, availability, packing)
    layout = Layout(plan_of(request), costs, [CPU, GPU])
    (found,) = streamings(layout, costs.profiles)
    return found


def test_the_break_even_is_where_two_sums_meet() -> None:
    """By hand: a chunk's experts on the CPU, as often as there are chunks, against the link and the GPU once."""
    found = found_of(REQUEST)
    costs = costs_of(REQUEST, KBENCH)
    plan = plan_of(REQUEST)
    experts = [call.problem for call in plan.calls[Phase.PREFILL] if call.op == "moe_experts"]
    profile = load_profile("rtx4090")

    def cpu(tokens: int) -> float:
        assert tokens >= 256
        each = [costs.cost(problem, CPU, 2) for problem in experts]
        return math.fsum(cost.seconds for cost in each if cost) * tokens / 256

    def gpu(tokens: int, prepared: bool) -> float:
        total = 0.0
        for problem in experts:
            size = work(problem.replace(tokens=tokens))
            total += profile.transfer_seconds(size.resident_bytes) + profile.seconds(size)
            total += size.resident_bytes / PACKING if prepared else 0.0
        return total

    assert found.tokens is not None and 256 < found.tokens <= STEP_TOKENS
    assert gpu(found.tokens, True) <= cpu(found.tokens)
    assert gpu(round(0.97 * found.tokens), True) > cpu(round(0.97 * found.tokens))
    assert found.ready_tokens is not None and found.ready_tokens < found.tokens
    assert found.layer_bytes == max(work(p).resident_bytes for p in experts)
    assert STEP_TOKENS == session.LAYERWISE_CHUNK


def test_a_slower_link_pays_later_and_what_is_not_known_is_not_told() -> None:
    fast, slow = (found_of(replace(REQUEST, gpu=name)).ready_tokens for name in ("rtx4090", "rtx4060ti"))
    assert fast is not None and slow is not None and fast < slow
    unknown = found_of(REQUEST, packing=False)
    assert unknown.tokens is None and unknown.prepare_seconds is None and unknown.ready_tokens == fast


def test_the_engine_of_today_cannot_and_the_plan_says_why() -> None:
    placed = placed_of(availability=KBENCH)
    assert placed.threshold == 0 and placed.layout.layerwise is None
    (found,) = placed.streaming
    assert found.obstacle == KBENCH.missing["moe_experts"] and found.fields(0)["threshold"] == 0


def test_an_engine_that_can_prefills_long_prompts_on_the_gpu() -> None:
    placed, plain = placed_of(), placed_of(availability=KBENCH)
    assert placed.threshold == found_of(REQUEST).tokens - 1
    assert placed.workload_seconds < 0.95 * plain.workload_seconds
    assignment = placed.layout.assignment(placed.solution)
    experts = [p for name, p in assignment.items() if name.endswith(".mlp.experts") and p.generate_device == CPU]
    assert len(experts) > 10 and all(p.prefill_device == GPU for p in experts)
    # The solver's sum is the price of what the engine would run.
    assert placed.solution.seconds == pytest.approx(placed.workload_seconds, rel=1e-9)
    # Everything that it needs on the GPU is counted: a layer's experts, and activations of a long step.
    lines = memory_of(placed)["cuda:0"]
    assert lines["swapped_bytes"] == found_of(REQUEST).layer_bytes
    assert lines["workspace_bytes"] > memory_of(plain)["cuda:0"]["workspace_bytes"]
    assert lines["total_bytes"] <= lines["budget_bytes"] - lines["margin_bytes"]


def memory_of(placed: Any) -> dict[str, dict[str, int]]:
    from kbench.tuner.memory import memory

    return memory(placed.layout, placed.problem, placed.solution, placed.prices, placed.available)


@pytest.mark.parametrize("change", [{"prompt_tokens": 100}, {"objective": "decode"}, {"vram_bytes": 2 << 30}])
def test_it_is_not_planned_where_it_brings_nothing(change: dict[str, Any]) -> None:
    """A short prompt, a prompt that does not count, a GPU without room for a layer more."""
    assert placed_of(replace(REQUEST, **change)).threshold == 0


def test_the_rules_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model.CostModel.__init__, "__kwdefaults__", {
        **(cost_model.CostModel.__init__.__kwdefaults__ or {}), "availability": ABLE,
    })  # fmt: skip
    report = replayed(tmp_path)
    (row,) = report.fields["streaming"]
    rules = parse_rules(parse_yaml(report.rules_text), "emitted")
    assert rules.prefill_threshold == row["threshold"] > 0 and row["source"] == "modelled"
    tree = plan_of(REQUEST).tree
    assert assign(rules, tree, Placement(), check_block=block_errors) == report.assignment
    assert [finding for finding in check(rules, tree) if finding.severity == "error"] == []
    brought = [row for row in report.fields["ops"] if row["op"] == "moe_experts" and row["phase"] == "prefill"]
    assert {row["device"] for row in brought} == {"cuda:0"} and {row["source"] for row in brought} == {"modelled"}


def replayed(tmp_path: Path) -> TuneReport:
    store = Store(tmp_path)
    store.append(with_packing(records(cells(plan_of(REQUEST), (1, 2)))), suite="made-up")
    return replay(REQUEST, store, HOST_ID, (1, 2))


def test_a_model_without_experts_has_none(tmp_path: Path) -> None:
    from tiny_models import make_tiny

    from kbench.tuner import make_plan

    request = TuneRequest(context=64, vram_bytes=1 << 30)
    plan = make_plan(make_tiny("llama"), request, workload(request))
    costs = CostModel(records(cells(plan, (1,))), threads=(1,), profiles=budgets(request, None)[1])
    assert streamings(Layout(plan, costs, [CPU, GPU]), costs.profiles) == []
