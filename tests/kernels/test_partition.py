"""Ways of sharing out a stage among threads: whoever makes a unit, the result is the same to the last bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kbench.core import Problem
from kbench.kernels import example, implementation, op_spec

native = pytest.importorskip("kbench.kernels.cpu._native")

ISA = [name for name, missing in native.isas() if not missing][-1]
KINDS = ("static", "dynamic", "stealing")

# One token, some, and enough for threads to share out tokens too; fewer tiles than threads, and a broken last tile.
KEYS = [
    *(f"linear(quant=Q4_K,n={n},k=256,tokens={tokens})" for n in (16, 40, 1000) for tokens in (1, 9, 70)),
    "moe_router(quant=F32,experts=20,top_k=3,k=64,tokens=5)",
    *(
        f"moe_experts(experts=5,top_k=2,n=288,k=64,quant_gate=Q8_0,quant_up=Q8_0,quant_down=Q4_0,tokens={tokens})"
        for tokens in (1, 40)
    ),
]


@pytest.mark.parametrize("key", KEYS)
def test_results_do_not_depend_on_the_partition(key: str) -> None:
    problem, item = Problem.parse(key), implementation(f"cpu.{ISA}")
    case = example(problem, np.random.default_rng(5))
    prepared = item.prepare(problem, case.weights)
    right: list[np.ndarray] = []
    for kind in KINDS:
        call = dataclasses.replace(case.call, block={"partition": kind})
        for threads in (1, 2, 3, 5):
            # Again and again: counters of an earlier run must not be taken for this one's.
            for _ in range(3):
                outputs = item.run(call, prepared, case.inputs, case.state, threads)
                if not right:
                    right = outputs
                    assert op_spec(problem.op).check(item, case, outputs).ok
                for output, expected in zip(outputs, right, strict=True):
                    np.testing.assert_array_equal(output, expected, f"{kind}, {threads} threads")


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_matrix_waits_for_the_threads_that_made_it(kind: str) -> None:
    """In a static partition SiLU * up follows gate and up without a barrier, by the thread that made the columns."""
    rng = np.random.default_rng(6)
    d, n = 64, 640
    weights = [rng.standard_normal((n, d)).astype(np.float32) / 8 for _ in range(2)]
    gate, up = (native.pack("F32", w.reshape(-1).view(np.uint8), n, d) for w in weights)
    raw = np.zeros(4 * (d + 3 * n) + 64, np.uint8)
    arena = raw[-raw.ctypes.data % 64 :][: 4 * (d + 3 * n)]
    values = arena.view(np.float32)
    program = native.Program(native.Pool(3), arena, 1)
    program.set_parameter("partition", kind)
    places = [4 * (d + i * n) for i in range(3)]
    program.linear("scalar", gate, 0, places[0])
    program.linear("scalar", up, 0, places[1])
    program.silu_mul("scalar", places[0], places[1], places[2], n)
    assert program.n_barriers == (0 if kind == "static" else 1)
    for _ in range(50):
        x = rng.standard_normal(d).astype(np.float32)
        values[:d], values[d:] = x, np.nan
        program.run(np.zeros(1, np.int32), 0)
        g, u = (w @ x for w in weights)
        np.testing.assert_allclose(values[d + 2 * n :], g / (1 + np.exp(-g)) * u, rtol=1e-3, atol=1e-4)
