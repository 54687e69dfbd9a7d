"""Routed experts: every share of tokens that routing can make, every mix of types, any number of threads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kbench.core import Problem
from kbench.kernels import example, implementation, op_spec, support

native = pytest.importorskip("kbench.kernels.cpu._native")

ISAS = [name for name, missing in native.isas() if not missing]
THREADS = (1, 2, 5)


def _routes(name: str) -> tuple[np.ndarray, int]:
    """Expert ids ``[tokens, top_k]``, and how many experts there are."""
    rng = np.random.default_rng(1)
    if name == "none, one and many":  # expert 0 gets no token, 1 gets one, 2 gets 37, 3 and 4 share the rest
        ids = np.stack([np.full(75, 3), np.where(np.arange(75) % 2, 2, 4)], -1)
        ids[70] = 4, 1
        return ids, 5
    if name == "all to one":
        return np.full((41, 1), 3), 5
    if name == "top 1":
        return rng.integers(0, 4, (19, 1)), 4
    if name == "every expert":
        return np.argsort(rng.random((7, 5)), -1), 5
    return np.array([[4, 1]]), 5  # one token


ROUTES = ("one token", "none, one and many", "all to one", "top 1", "every expert")
MIXES = (
    "Q4_K,Q4_K,Q6_K", "Q4_0,Q8_0,F16", "F32,Q4_1,Q8_0", "Q6_K,BF16,Q4_K", "F16,F32,F32", "Q5_K,IQ4_XS,Q3_K",
    "MXFP4,Q5_0,IQ4_NL", "Q2_K,Q2_K,Q5_1",
)  # fmt: skip


def _run(isa: str, threads: int, routes: str, mix: str, n: int, k: int, block: dict[str, int]) -> np.ndarray:
    ids, experts = _routes(routes)
    gate, up, down = mix.split(",")
    problem = Problem.make(
        "moe_experts", experts=experts, top_k=ids.shape[1], n=n, k=k, quant_gate=gate, quant_up=up, quant_down=down,
        tokens=len(ids),
    )  # fmt: skip
    item = implementation(f"cpu.{isa}")
    if not support(item, problem).ok:
        pytest.skip(support(item, problem).reason)
    case = example(problem, np.random.default_rng(0))
    x, _, scores = case.inputs
    case = dataclasses.replace(
        case, inputs=(x, ids.astype(np.int32), scores), call=dataclasses.replace(case.call, block=block)
    )
    outputs = item.run(case.call, item.prepare(problem, case.weights), case.inputs, case.state, threads)
    verdict = op_spec("moe_experts").check(item, case, outputs)
    assert verdict.ok, verdict.reason
    return outputs[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("routes", ROUTES)
@pytest.mark.parametrize("planes", [1, 2])
def test_any_share_of_the_tokens(isa: str, routes: str, planes: int) -> None:
    made = [_run(isa, t, routes, "Q4_K,Q4_K,Q6_K", 256, 256, {"activation_planes": planes}) for t in THREADS]
    for other in made[1:]:
        np.testing.assert_array_equal(made[0], other, "the result depends on the thread count")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("routes", ["one token", "none, one and many"])
def test_any_mix_of_types(isa: str, routes: str, mix: str) -> None:
    # 288 is not a whole number of 128 columns; super-blocks want 256.
    n = 512 if mix.endswith("_K") else 288
    _run(isa, 2, routes, mix, n, 256, {})


def test_layers_share_their_scratch() -> None:
    """Steps run one after another: 20 layers need no more scratch than one."""
    rng = np.random.default_rng(0)
    pool, tokens, k, n, experts = native.Pool(2), 33, 64, 32, 4
    arena = np.zeros(1 << 16, np.uint8)
    arena = arena[-arena.ctypes.data % 64 :]

    def matrices(rows: int, columns: int) -> list[native.Matrix]:
        weights = rng.standard_normal((experts, rows, columns)).astype(np.float32)
        return [native.pack("F32", each.reshape(-1).view(np.uint8), rows, columns) for each in weights]

    gate, up, down, router = matrices(n, k), matrices(n, k), matrices(k, n), matrices(experts, k)[0]
    sizes = []
    for layers in (1, 20):
        program = native.Program(pool, arena, tokens)
        for _ in range(layers):
            program.moe_router("scalar", router, 0, 16384, 20480, 2, "softmax")
            program.moe_experts("scalar", gate, up, down, 0, 16384, 20480, 32768, 2)
        sizes.append(program.scratch_bytes)
    assert sizes[0] == sizes[1] > 0
