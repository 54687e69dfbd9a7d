"""Calls timed where they stand: their seconds add up to the run's, whatever the model; what is too big is left out."""

from __future__ import annotations

import dataclasses

import pytest
from tiny_models import ARCHITECTURES, make_tiny

from kbench.core import OpCall, Phase, Problem
from kbench.kernels import implementations
from kbench.measure import FixedCount
from kbench.model import lower
from kbench.suites import Row, in_place, in_run

NATIVE = [item.name for item in implementations() if item.name.startswith("cpu.") and item.runnable().ok]
if not NATIVE:
    pytest.skip("extension not built", allow_module_level=True)

FEW = FixedCount(3)


def test_what_profiling_adds_is_taken_off_each_step() -> None:
    """Steps of 3, 5, 1 and 1 take 14 with a barrier of 1 each; the last call has two of them."""
    assert in_run([4, 6, 2, 2], [1, 2, 4], 10) == pytest.approx([3, 5, 2])


def test_no_call_is_free() -> None:
    calls = in_run([10, 1], [1, 2], 8)
    assert sum(calls) == pytest.approx(8)
    assert calls[1] > 0


def test_a_profile_that_adds_nothing_only_shares_out() -> None:
    assert in_run([1, 3], [1, 2], 8) == pytest.approx([2, 6])


def calls_of(architecture: str, phase: Phase, tokens: int, context: int) -> list[OpCall]:
    calls = lower(make_tiny(architecture), {}, phase, tokens, context, resolve=lambda *_: NATIVE[0])
    return [dataclasses.replace(call, implementation=NATIVE[0]) for call in calls]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_seconds_add_up_to_the_run(architecture: str, phase: Phase) -> None:
    tokens, context = (1, 20) if phase is Phase.DECODE else (6, 20)
    calls = calls_of(architecture, phase, tokens, context)
    row = Row(calls, tokens, 64)
    records = row.records(2, context, FEW)
    assert row.problems(context) == [record.core_problem() for record in records]
    assert {call.problem for call in calls} == set(row.problems(20))
    assert sum(record.extra["in_place"] for record in records) == len(calls)
    totals = [sum(record.extra["in_place"] * record.samples[i] for record in records) for i in range(FEW.n_samples)]
    # Every sample is a share of one run: the same shares of all.
    for total, sample in zip(totals, records[0].samples, strict=True):
        assert total / sample == pytest.approx(totals[0] / records[0].samples[0])
    assert all(record.median and record.median > 0 for record in records)


def test_what_is_too_big_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of("llama", Phase.PREFILL, 6, 20)
    largest = max((call.problem for call in calls if call.op == "linear"), key=lambda problem: problem.integer("n"))
    monkeypatch.setattr("kbench.suites.in_place.MAX_FLOPS", 2 * 6 * 256 * largest.integer("n") - 1)
    row = Row(calls, 6, 64)
    left_out = {call.problem for call in calls} - set(row.problems(20))
    assert largest in left_out
    assert all(record.median for record in row.records(1, 20, FEW))


def test_a_layer_of_many_experts_runs_with_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of experts that would take gigabytes: so many are made as a token goes to, or a cold cache needs."""
    problem = Problem.make(
        "moe_experts", experts=4096, top_k=2, n=256, k=256, quant_gate="Q8_0", quant_up="Q8_0", quant_down="Q8_0",
        tokens=1,
    )  # fmt: skip
    monkeypatch.setattr("kbench.suites.runner.cold_bytes", lambda: 1 << 20)
    calls = [
        dataclasses.replace(call, problem=problem) if call.op == "moe_experts" else call
        for call in calls_of("qwen3moe", Phase.DECODE, 1, 20)
    ]
    row = Row(calls, 1, 64)
    (record,) = (record for record in row.records(1, 20, FEW) if record.op == "moe_experts")
    assert record.core_problem() == problem
    assert record.extra["prepared_bytes"] < 4096 * 3 * 256 * 256


def test_both_phases_run_on_one_copy_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Problem] = []
    before = in_place.example_weights
    monkeypatch.setattr(
        in_place,
        "example_weights",
        lambda problem, *args, **more: (made.append(problem), before(problem, *args, **more))[1],
    )
    decode = Row(calls_of("deepseek2", Phase.DECODE, 1, 20), 1, 64)
    n_decode = len(made)
    Row(calls_of("deepseek2", Phase.PREFILL, 6, 20), 6, 64, decode)
    assert n_decode > 40
    # Only what prefill does in another way: the latent is multiplied out.
    assert {problem.op for problem in made[n_decode:] if problem.has("quant") or problem.has("quant_k")} <= {
        "mla_decompressed"
    }
