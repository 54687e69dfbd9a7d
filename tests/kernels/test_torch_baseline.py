"""What only the torch baseline does: its type choice, threads, memory."""

from __future__ import annotations

import numpy as np
import pytest

from kbench.core import Problem
from kbench.kernels import example, op_spec
from kbench.kernels.torch_baseline import TorchImplementation

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_both_types_are_within_their_bounds(dtype: str) -> None:
    item = TorchImplementation(dtype)
    assert dtype in item.summary
    for key in (
        "linear(quant=Q4_K,n=40,k=512,tokens=3)",
        "moe_experts(experts=4,top_k=2,n=256,k=256,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens=3)",
        "moe_router(quant=F32,experts=16,top_k=3,k=64,tokens=9)",
    ):
        case = example(Problem.parse(key), np.random.default_rng(1))
        prepared = item.prepare(case.call.problem, case.weights)
        judged = op_spec(case.call.op).check(item, case, item.run(case.call, prepared, case.inputs, case.state, 1))
        assert judged.ok, judged.reason
        assert item.accuracy(case.call.problem) == ("f32" if case.call.op == "moe_router" else dtype)


def test_weights_take_the_bytes_of_their_type() -> None:
    problem = Problem.make("linear", quant="Q8_0", n=10, k=64, tokens=1)
    weights = example(problem, np.random.default_rng(0)).weights
    assert TorchImplementation("f32").prepare(problem, weights).n_bytes == 10 * 64 * 4
    assert TorchImplementation("bf16").prepare(problem, weights).n_bytes == 10 * 64 * 2


def test_the_thread_count_is_put_back() -> None:
    case = example(Problem.make("linear", quant="F32", n=4, k=8, tokens=1), np.random.default_rng(0))
    item = TorchImplementation("f32")
    before = torch.get_num_threads()
    item.run(case.call, item.prepare(case.call.problem, case.weights), case.inputs, case.state, before + 1)
    assert torch.get_num_threads() == before


@pytest.mark.filterwarnings("error")
def test_weights_of_a_read_only_file_warn_of_nothing() -> None:
    item = TorchImplementation("f32")
    case = example(Problem.make("linear", quant="F32", n=4, k=8, tokens=1), np.random.default_rng(0))
    for weight in case.weights:
        weight.raw.flags.writeable = False
    torch.set_warn_always(True)  # else torch warns once a process, perhaps before this test
    try:
        prepared = item.prepare(case.call.problem, case.weights)
    finally:
        torch.set_warn_always(False)
    assert prepared.n_bytes == 4 * 8 * 4
