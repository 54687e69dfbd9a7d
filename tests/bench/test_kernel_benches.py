"""The project's own kernels under pytest-benchmark: `pytest --benchmark-only tests/bench`.

In an ordinary run each is called once and checked against its definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kbench.core import Problem, default_threads, work
from kbench.kernels import best, example, example_weights, implementation, op_spec

# What decode and prefill spend their time on, in sizes that pack in a moment.
CASES = [
    "linear(quant=Q4_K,n=1536,k=5120,tokens=1)",
    "linear(quant=Q4_K,n=1536,k=5120,tokens=64)",
    "linear(quant=Q8_0,n=2048,k=2048,tokens=1)",
    "moe_experts(experts=8,top_k=2,n=512,k=1024,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens=1)",
    "attention(heads=32,kv_heads=8,d=128,kv=f16,tokens=1,context=1024)",
    "mla_attention(heads=16,kv_lora=512,rope=64,kv=f16,tokens=1,context=1024)",
    "rms_norm(d=4096,rows=1,tokens=64)",
    "silu_mul(n=14336,tokens=16)",
]
_SEED = 5


@pytest.mark.parametrize("key", CASES)
def test_kernel(key: str, kbench_benchmark: Any, kbench_cold: Any) -> None:
    problem = Problem.parse(key)
    item, threads = implementation(best(problem)), default_threads()
    weights = example_weights(problem, np.random.default_rng(_SEED))
    case = example(problem, np.random.default_rng(_SEED), weights=weights)
    touched = work(problem)
    # The same weights in every copy, so that every call has the same result; in memory of its own, so that it is cold.
    copies = kbench_cold(lambda: item.prepare(problem, weights), int(touched.weight_bytes))
    outputs = kbench_benchmark(
        lambda prepared: item.run(case.call, prepared, case.inputs, case.state, threads),
        cold=copies,
        n_bytes=touched.bytes_touched,
        flops=touched.flops,
        kind="int8" if problem.has("quant") or problem.has("quant_gate") else "f32",
        threads=threads,
    )
    verdict = op_spec(problem.op).check(item, case, outputs)
    assert verdict.ok, verdict.reason
