"""Native programs that are timed compute what they should, on every copy."""

from __future__ import annotations

import numpy as np
import pytest

from kbench.core import Problem
from kbench.kernels import implementation, implementations, op_spec, pool
from kbench.suites import Cell
from kbench.suites.copies import first_example, pack_copies, touched_bytes, variants
from kbench.suites.workload import PROGRAM_STEPS, in_programs

NATIVE = [item.name for item in implementations() if item.name.startswith("cpu.") and item.runnable().ok]
if not NATIVE:
    pytest.skip("extension not built", allow_module_level=True)

KEYS = [
    "linear(quant=Q4_K,n=40,k=256,tokens=3)",
    "attention(heads=4,kv_heads=2,d=16,kv=f16,tokens=1,context=40)",
    "moe_experts(experts=8,top_k=2,n=32,k=64,quant_gate=Q4_0,quant_up=Q4_0,quant_down=Q4_0,tokens=2)",
    "embedding(quant=Q8_0,vocab=50,d=64,tokens=3)",
    "silu_mul(n=48,tokens=2)",
]


@pytest.fixture(autouse=True)
def few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbench.suites.copies.MAX_COPIES", 3)


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("key", KEYS)
def test_each_copy_is_computed(key: str, name: str) -> None:
    """A program of a single step per copy leaves the truth of that copy's weights, experts or cache behind."""
    problem, item = Problem.parse(key), implementation(name)
    packed = pack_copies(item, problem)
    case = first_example(Cell(problem, name, 2), problem, packed)
    chosen = variants(case, packed)
    workload = in_programs(item, pool(2), chosen, call_seconds=1.0)
    assert workload.steps == 1
    assert len(workload.turns) == len(chosen)
    seen = []
    for variant, (one, _) in enumerate(chosen):
        arena, _ = workload.turns[variant]()
        value = one.call.outputs[0]
        begin = arena.offsets(one, variant, 0)[value.name]
        size = problem.integer("tokens") * value.width
        seen.append(arena.buffer[begin : begin + 4 * size].view(np.float32).reshape(-1, value.width).copy())
    judged = op_spec(problem.op).check(item, case, [seen[0]])
    if problem.op == "moe_experts":  # its first variant goes to other experts than the checked example
        judged = op_spec(problem.op).check(item, chosen[0][0], [seen[0]])
    assert judged.ok, judged.reason
    if len(chosen) > 1:
        assert not np.allclose(seen[0], seen[1])


def test_programs_are_long_when_steps_are_short_and_end_with_whole_rounds() -> None:
    problem, item = Problem.parse(KEYS[0]), implementation(NATIVE[0])
    packed = pack_copies(item, problem)
    chosen = variants(first_example(Cell(problem, NATIVE[0], 1), problem, packed), packed)
    workload = in_programs(item, pool(1), chosen, call_seconds=1e-6)
    assert PROGRAM_STEPS - len(chosen) < workload.steps <= PROGRAM_STEPS
    assert workload.steps % len(chosen) == 0
    workload.run()
    cut = in_programs(item, pool(1), chosen, call_seconds=0.011)
    assert (cut.steps, len(cut.turns)) == (1, 3)


def test_experts_take_turns_until_all_were_read() -> None:
    problem = Problem.parse(KEYS[2]).replace(tokens=1)
    packed = pack_copies(implementation(NATIVE[0]), problem)
    chosen = variants(first_example(Cell(problem, NATIVE[0], 1), problem, packed), packed)
    ids = np.concatenate([one.inputs[1].reshape(-1) for one, _ in chosen])
    assert sorted(ids.tolist()) == list(range(8))
    assert touched_bytes(chosen[0][0], chosen) == packed.n_bytes
