"""What a call costs: stand-ins scale exactly, no price beats the roof, threads are chosen with a margin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_records import record_of, seconds_of

from kbench.core import CPU, Device, OpCall, Problem, work
from kbench.results import Record
from kbench.tuner import load_profile, proxy
from kbench.tuner.cost_model import CostModel, Roof
from kbench.tuner.packed import PackedRatios, Packing, packing, stored_bytes

GPU = Device("cuda", 0)
SMALL = Problem.parse("linear(quant=Q4_K,n=1536,k=5120,tokens=1)")
LARGE = Problem.parse("linear(quant=Q4_K,n=5120,k=16384,tokens=256)")
EXPERTS = Problem.parse(
    "moe_experts(experts=160,top_k=6,n=1536,k=5120,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens=1)"
)


@pytest.mark.parametrize(
    "problem",
    [
        LARGE,
        Problem.parse("linear(quant=Q6_K,n=102400,k=5120,tokens=1)"),
        Problem.parse("head_linear(quant=Q8_0,heads=128,n=512,k=128,tokens=256)"),
        Problem.parse("mla_attention(heads=128,kv_lora=512,rope=64,kv=f16,tokens=256,context=1024)"),
        Problem.parse("attention(heads=64,kv_heads=8,d=128,kv=f16,tokens=256,context=4096)"),
    ],
    ids=lambda problem: problem.op,
)
def test_a_stand_in_is_the_share_it_says(problem: Problem) -> None:
    small, scale = proxy(problem)
    assert scale > 1 and work(small).flops * scale == pytest.approx(work(problem).flops)
    assert work(small).weight_bytes * scale == pytest.approx(work(problem).weight_bytes)


def test_a_stand_in_has_enough_rows_for_what_is_quantised_once() -> None:
    small, _ = proxy(LARGE.replace(k=5120, n=16384))
    assert small.integer("n") >= 1024


def test_what_is_small_is_measured_whole() -> None:
    assert proxy(SMALL) == (SMALL, 1.0)
    assert proxy(EXPERTS) == (EXPERTS, 1.0)


def test_a_measured_price_is_the_median_with_its_quartiles() -> None:
    costs = CostModel([record_of(SMALL, "cpu.avx2", 2)], threads=(2,))
    cost = costs.cost(SMALL, CPU, 2)
    seconds = seconds_of(SMALL, 2)
    assert cost is not None and cost.source == "measured" and cost.implementation == "cpu.avx2"
    assert (cost.low, cost.seconds, cost.high) == pytest.approx((0.98 * seconds, seconds, 1.02 * seconds))
    assert costs.cost(SMALL, CPU, 1) is None
    assert costs.cost(SMALL, GPU, 2) is None


def test_a_stand_ins_record_prices_the_whole() -> None:
    small, scale = proxy(LARGE)
    costs = CostModel([record_of(small, "cpu.avx2", 1)], threads=(1,))
    cost = costs.cost(LARGE, CPU, 1)
    assert cost is not None and cost.seconds == pytest.approx(scale * seconds_of(small, 1))


def test_the_faster_of_two_implementations_counts_and_failures_do_not() -> None:
    slow = record_of(SMALL, "torch", 2, samples=(1.0, 1.0, 1.0), median=1.0)
    wrong = record_of(SMALL, "cpu.scalar", 2, status="wrong", samples=(), median=None, reason="off")
    cost = CostModel([slow, record_of(SMALL, "cpu.avx2", 2), wrong], threads=(2,)).cost(SMALL, CPU, 2)
    assert cost is not None and cost.implementation == "cpu.avx2"


def test_a_sweep_of_kernel_parameters_prices_nothing() -> None:
    plain = record_of(SMALL, "cpu.avx2", 2)
    swept = replace(plain, samples=tuple(s / 2 for s in plain.samples), extra=plain.extra | {"block": {"k_block": 512}})
    cost = CostModel([plain, swept], threads=(2,)).cost(SMALL, CPU, 2)
    assert cost is not None and cost.seconds == pytest.approx(seconds_of(SMALL, 2))


def test_no_price_beats_the_roof() -> None:
    hot = record_of(SMALL, "cpu.avx2", 2, samples=(1e-9, 1e-9, 1e-9), median=1e-9)
    roof = Roof({1: 20e9, 2: 40e9}, {2: 1e12})
    cost = CostModel([hot], threads=(2,), roof=roof).cost(SMALL, CPU, 2)
    assert cost is not None and cost.seconds == pytest.approx(work(SMALL).weight_bytes / 40e9)
    assert cost.low <= cost.seconds <= cost.high


def test_what_was_timed_in_place_counts_whatever_came_later() -> None:
    alone = record_of(SMALL, "cpu.avx2", 2)

    def in_place(share: float, run_tokens: int) -> Record:
        extra = {"in_place": 3, "run_tokens": run_tokens}
        return replace(alone, samples=tuple(share * s for s in alone.samples), extra=extra)

    def seconds(*records: Record) -> float:
        cost = CostModel(records, threads=(2,)).cost(SMALL, CPU, 2)
        assert cost is not None
        return cost.seconds / seconds_of(SMALL, 2)

    assert seconds(alone, in_place(0.9, 1)) == seconds(in_place(0.9, 1), alone) == pytest.approx(0.9)
    # The newer of two; and of the head's one row, which both phases run, the one in a decoded token.
    assert seconds(in_place(0.9, 1), in_place(0.8, 1)) == pytest.approx(0.8)
    assert seconds(in_place(0.9, 1), in_place(0.5, 256)) == pytest.approx(0.9)


def test_what_a_model_finds_in_a_cache_may_beat_the_roof() -> None:
    """A small model is in part in the cache when its next token comes, in a run of all its layers as in the engine."""
    alone = record_of(SMALL, "cpu.avx2", 2)
    roof = Roof({2: work(SMALL).weight_bytes / seconds_of(SMALL, 2) / 2}, {2: 1e12})
    assert CostModel([alone], threads=(2,), roof=roof).cost(SMALL, CPU, 2).seconds == pytest.approx(  # type: ignore
        2 * seconds_of(SMALL, 2)
    )
    cost = CostModel([replace(alone, extra={"in_place": 1})], threads=(2,), roof=roof).cost(SMALL, CPU, 2)
    assert cost is not None and cost.seconds == pytest.approx(seconds_of(SMALL, 2))


def test_a_whole_problem_counts_before_its_stand_in() -> None:
    whole, (small, _) = record_of(LARGE, "cpu.avx2", 1), proxy(LARGE)
    stand_in = record_of(small, "cpu.avx2", 1, samples=(1.0, 1.0, 1.0), median=1.0)
    cost = CostModel([whole, stand_in], threads=(1,)).cost(LARGE, CPU, 1)
    assert cost is not None and cost.seconds == pytest.approx(seconds_of(LARGE, 1))


def test_a_gpu_is_modelled_and_has_no_routed_experts() -> None:
    costs = CostModel([], threads=(1,), profiles={GPU: load_profile("rtx4090")})
    cost = costs.cost(SMALL, GPU, 1)
    assert cost is not None and cost.source == "modelled" and cost.low < cost.seconds < cost.high
    assert costs.cost(EXPERTS, GPU, 1) is None


def test_fewer_threads_need_a_clear_gain() -> None:
    def costs(one: float) -> CostModel:
        rows = [record_of(SMALL, "cpu.avx2", n, samples=(s, s, s), median=s) for n, s in ((1, one), (2, 1.0))]
        return CostModel(rows, threads=(1, 2))

    assert costs(0.97).best_threads({SMALL: 1.0}) == 2
    assert costs(0.80).best_threads({SMALL: 1.0}) == 1


def test_packed_bytes_are_learned_by_type() -> None:
    stored = sum(stored_bytes(SMALL).values())
    packed = record_of(SMALL, "cpu.avx2", 2, extra={"prepared_bytes": stored * 37 // 36})
    experts = record_of(EXPERTS, "cpu.avx2", 2)
    costs = CostModel([packed, experts], threads=(2,))
    kinds = stored_bytes(EXPERTS)
    assert set(kinds) == {"Q4_K", "Q6_K"} and sum(kinds.values()) == work(EXPERTS).resident_bytes
    assert costs.weight_bytes(EXPERTS, CPU, 2) == kinds["Q4_K"] * 37 // 36 + kinds["Q6_K"]
    assert costs.weight_bytes(EXPERTS, GPU, 2) == sum(kinds.values())


def test_packing_is_foretold_from_the_largest_matrix_of_each_type() -> None:
    stored = sum(stored_bytes(SMALL).values())
    small = SMALL.replace(n=SMALL.integer("n") // 2)
    records = [
        record_of(small, "cpu.avx2", 2, extra={"prepared_bytes": stored // 2, "prepare_seconds": 9.0}),
        record_of(SMALL, "cpu.scalar", 2, extra={"prepared_bytes": stored, "prepare_seconds": 2.0}),
    ]
    ratios = PackedRatios(records)
    calls = [call("a", SMALL), call("a", SMALL), call("b", SMALL.replace(tokens=5))]
    assert packing(calls, ratios) == Packing(2 * stored, 2 * stored, 4.0)
    assert packing([*calls, call("c", SMALL.replace(quant="IQ1_S"))], ratios).seconds is None
    assert packing([], ratios) == Packing(0, 0, 0.0)


def call(weight: str, problem: Problem) -> tuple[OpCall, str]:
    return OpCall(problem.op, problem, "auto", CPU, "m", ("x",), (), (weight,)), "cpu.avx2"
