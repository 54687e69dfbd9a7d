"""Every implementation that runs here, every op it takes, odd shapes: within derived bounds of the float64 truth."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kbench.core import KV_TYPES, OPS, Problem
from kbench.kernels import Example, accuracy_of, check, dequantize, example, implementations, op_spec, support

RUNNABLE = [item for item in implementations() if item.runnable().ok]
NATIVE_QUANTS = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4",
)  # fmt: skip
SIGMOID = {"scoring": "sigmoid", "n_group": 4, "topk_group": 2, "norm_topk_prob": 1, "routed_scaling": 2.5}
GROUPS = {"scoring": "softmax", "n_group": 4, "topk_group": 2, "norm_topk_prob": 0, "routed_scaling": 16.0}
YARN = {"scaling": "yarn", "factor": 40.0, "original_context": 4096, "mode": "norm", "head_dim": 24}

# gpt-oss's experts; with outputs about 1 large, a limit of 1 is met by every other element.
CLAMPED = {"activation": "clamped_swiglu", "alpha": 1.702, "limit": 1.0}
_EXPERTS = "moe_experts(experts={},top_k={},n={},k={},quant_gate={q},quant_up={q},quant_down={q},tokens={})"

_DECOMPRESSED = (
    "mla_decompressed(quant_k={},quant_v={},heads={},kv_lora={},rope={},nope=36,v=20,kv={},tokens={},context={})"
)

# (key, attributes that differ from the usual, with a bias)
CASES: list[tuple[str, dict[str, object], bool]] = [
    *((f"linear(quant={q},n=33,k=512,tokens=1)", {}, False) for q in NATIVE_QUANTS),
    *((f"linear(quant={q},n=50,k=768,tokens=7)", {}, True) for q in NATIVE_QUANTS),
    *((f"linear(quant={q},n=17,k=256,tokens=67)", {}, False) for q in ("Q4_1", "Q4_K", "F16")),
    *((f"linear(quant={q},n=5,k=256,tokens=2)", {}, False) for q in ("IQ2_XS", "IQ1_M", "NVFP4")),
    ("linear(quant=Q8_0,n=1,k=32,tokens=1)", {}, False),
    ("linear(quant=Q4_0,n=19,k=96,tokens=5)", {}, True),
    ("linear(quant=F32,n=21,k=40,tokens=3)", {}, False),
    *((f"embedding(quant={q},vocab=101,d=512,tokens=9)", {}, False) for q in NATIVE_QUANTS),
    ("rms_norm(d=576,rows=1,tokens=3)", {"eps": 1e-5}, False),
    ("rms_norm(d=40,rows=5,tokens=2)", {}, False),
    ("rope(heads=3,d=64,tokens=5)", {"mode": "norm"}, False),
    ("rope(heads=5,d=40,tokens=2)", {"mode": "neox"}, False),
    ("rope(heads=2,d=8,tokens=4)", YARN, False),
    ("rope(heads=3,d=16,tokens=2)", {"mode": "neox", "part": "first", "head_dim": 40}, False),
    ("attention(heads=9,kv_heads=3,d=64,kv=f16,tokens=1,context=1)", {}, False),
    ("attention(heads=9,kv_heads=3,d=64,kv=f16,tokens=1,context=333)", {}, False),
    ("attention(heads=4,kv_heads=4,d=40,kv=f32,tokens=1,context=70)", {}, False),
    ("attention(heads=6,kv_heads=2,d=32,kv=f32,tokens=19,context=19)", {}, False),
    ("attention(heads=6,kv_heads=1,d=128,kv=f16,tokens=13,context=90)", {"scale": 0.3}, False),
    *((f"attention(heads=8,kv_heads=2,d=64,kv={kv},tokens=1,context=150,window=40)", {}, True) for kv in KV_TYPES),
    *((f"attention(heads=6,kv_heads=3,d=32,kv={kv},tokens=70,context=300,window=64)", {}, True) for kv in KV_TYPES),
    ("attention(heads=4,kv_heads=4,d=40,kv=f32,tokens=9,context=70,window=1)", {}, False),
    ("attention(heads=8,kv_heads=1,d=64,kv=f16,tokens=150,context=150,window=21)", {}, False),
    ("attention(heads=9,kv_heads=3,d=64,kv=f16,tokens=5,context=333)", {}, True),
    ("attention(heads=9,kv_heads=3,d=64,kv=f16,tokens=5,context=30,window=90)", {}, False),
    ("mla_attention(heads=5,kv_lora=64,rope=16,kv=f16,tokens=1,context=77)", {}, False),
    ("mla_attention(heads=3,kv_lora=32,rope=8,kv=f32,tokens=6,context=21)", {}, False),
    *((f"attention(heads=8,kv_heads=2,d=64,kv={kv},tokens=1,context=150)", {}, False) for kv in ("bf16", "q8_0")),
    *((f"attention(heads=10,kv_heads=2,d=32,kv={kv},tokens=17,context=60)", {}, False) for kv in ("bf16", "q8_0")),
    *((f"mla_attention(heads=20,kv_lora=64,rope=32,kv={kv},tokens=1,context=77)", {}, False) for kv in KV_TYPES),
    *((f"mla_attention(heads=3,kv_lora=96,rope=32,kv={kv},tokens=2,context=21)", {}, False) for kv in KV_TYPES),
    *((_DECOMPRESSED.format("Q8_0", "Q8_0", 3, 96, 32, kv, 5, 21), {}, False) for kv in KV_TYPES),
    *((_DECOMPRESSED.format("Q4_K", "Q4_K", 5, 256, 64, kv, 70, 300), {}, False) for kv in KV_TYPES),
    (_DECOMPRESSED.format("F16", "Q5_K", 2, 256, 8, "f16", 19, 700), {}, False),
    (_DECOMPRESSED.format("F32", "F16", 7, 40, 24, "f32", 1, 33), {}, False),
    ("silu_mul(n=1536,tokens=1)", {}, False),
    ("silu_mul(n=37,tokens=4)", {}, False),
    ("add(d=577,tokens=3)", {}, False),
    ("gated_add(d=577,tokens=1)", {}, False),
    ("gated_add(d=64,tokens=9)", {}, False),
    ("take_last(d=65,tokens=4)", {}, False),
    ("top_logits(vocab=999,top_k=40,tokens=3)", {}, False),
    ("transfer(d=65,src=cpu,dst=cpu,tokens=2)", {}, False),
    ("moe_router(quant=F32,experts=64,top_k=6,k=96,tokens=5)", {}, False),
    ("moe_router(quant=F32,experts=16,top_k=3,k=64,tokens=9)", {"norm_topk_prob": 1}, False),
    ("moe_router(quant=F32,experts=32,top_k=4,k=64,tokens=8)", GROUPS, False),
    ("moe_router(quant=F32,experts=32,top_k=4,k=64,tokens=8)", SIGMOID, True),
    ("moe_router(quant=F32,experts=32,top_k=4,k=64,tokens=8)", {"norm_topk_prob": 1, "logit_bias": 1}, True),
    ("expert_map(experts=9,here=4,top_k=3,tokens=7)", {}, False),
    ("expert_map(experts=9,here=4,top_k=3,tokens=7)", {"experts": (8, 0, 3, 5)}, False),
    ("expert_map(experts=5,here=4,top_k=2,tokens=1)", {}, False),
    ("moe_experts(experts=8,top_k=2,n=64,k=96,quant_gate=Q4_0,quant_up=Q4_1,quant_down=Q8_0,tokens=1)", {}, False),
    ("moe_experts(experts=6,top_k=3,n=256,k=512,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens=1)", {}, False),
    ("moe_experts(experts=4,top_k=2,n=256,k=256,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens=23)", {}, False),
    ("moe_experts(experts=5,top_k=2,n=256,k=256,quant_gate=Q3_K,quant_up=Q5_K,quant_down=IQ4_XS,tokens=3)", {}, False),
    ("moe_experts(experts=5,top_k=2,n=96,k=256,quant_gate=Q2_K,quant_up=MXFP4,quant_down=Q5_0,tokens=4)", {}, False),
    (_EXPERTS.format(5, 2, 96, 64, 1, q="MXFP4"), CLAMPED, True),
    (_EXPERTS.format(5, 2, 96, 64, 33, q="MXFP4"), CLAMPED, True),
    (_EXPERTS.format(3, 2, 32, 96, 300, q="MXFP4"), CLAMPED, True),
    (_EXPERTS.format(7, 3, 72, 40, 9, q="F32"), CLAMPED, True),
    (_EXPERTS.format(4, 2, 64, 96, 12, q="Q8_0"), {}, True),
    (_EXPERTS.format(4, 2, 40, 32, 12, q="F16"), CLAMPED | {"limit": 7.0}, False),
    ("head_linear(quant=Q8_0,heads=3,n=33,k=64,tokens=2)", {}, False),
    ("head_linear(quant=F32,heads=2,n=16,k=24,tokens=3)", {}, False),
]  # fmt: skip


def made(key: str, attrs: dict[str, object], bias: bool, seed: int = 0) -> Example:
    return example(Problem.parse(key), np.random.default_rng(seed), attrs=attrs, bias=bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("item", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize(("key", "attrs", "bias"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_within_bounds(item, key: str, attrs: dict[str, object], bias: bool) -> None:
    case = made(key, attrs, bias)
    verdict = support(item, case.call.problem)
    if not verdict.ok:
        assert verdict.reason
        pytest.skip(verdict.reason)
    prepared = item.prepare(case.call.problem, case.weights)
    before = [a.copy() for a in case.inputs]
    outputs = item.run(case.call, prepared, case.inputs, case.state, 2)
    assert prepared.n_bytes >= 0
    for kept, now in zip(before, case.inputs, strict=True):
        np.testing.assert_array_equal(kept, now, "an input was written to")
    assert [a.dtype.kind for a in outputs] == ["i" if v.dtype == "i32" else "f" for v in case.call.outputs]
    judged = op_spec(case.call.op).check(item, case, outputs)
    assert judged.ok, judged.reason


def test_every_op_is_covered() -> None:
    assert {Problem.parse(key).op for key, _, _ in CASES} == set(OPS)


@pytest.mark.parametrize("accuracy", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("quant", ["Q4_K", "Q8_0", "F16"])
def test_a_wrong_block_is_caught(quant: str, accuracy: str) -> None:
    """The weights that were multiplied differ from the stored ones in a single block of 32 columns."""
    case = made(f"linear(quant={quant},n=64,k=2048,tokens=1)", {}, False)
    right = op_spec("linear").reference(case.call, case.weights, case.inputs, case.state)[0]
    assert check(case.call, case.weights, case.inputs, case.state, [right], accuracy).ok
    block = dequantize(case.weights[0].raw, quant, 2048)[:, 512:544] @ case.inputs[0][0, 512:544]
    missed = 0
    for row in range(64):
        wrong = right.copy()
        wrong[0, row] -= block[row]
        missed += check(case.call, case.weights, case.inputs, case.state, [wrong], accuracy).ok
    # A block's share of one sum may happen to be small, so single rows may escape; a whole matrix cannot.
    assert missed <= 20
    assert not check(case.call, case.weights, case.inputs, case.state, [right - block], accuracy).ok


@pytest.mark.parametrize("op_key", [key for key, _, _ in CASES if not key.startswith(("linear", "take", "transfer"))])
def test_errors_of_other_ops_are_caught(op_key: str) -> None:
    key, attrs, bias = next(case for case in CASES if case[0] == op_key)
    case = made(key, attrs, bias)
    spec = op_spec(case.call.op)
    right = spec.reference(case.call, case.weights, case.inputs, case.state)
    for accuracy in ("f32", "int8"):
        assert check(case.call, case.weights, case.inputs, case.state, right, accuracy).ok
    wrong = [a.copy() for a in right]
    wrong[-1].reshape(-1)[-1] += 0.3 * np.abs(wrong[-1]).max()
    assert not check(case.call, case.weights, case.inputs, case.state, wrong, "f32").ok
    wrong[-1].reshape(-1)[-1] = np.nan
    assert not check(case.call, case.weights, case.inputs, case.state, wrong, "f32").ok


def test_small_errors_everywhere_are_caught_together() -> None:
    """Half of each element's bound is no rounding when every element has it."""
    case = made("linear(quant=Q8_0,n=128,k=512,tokens=4)", {}, False)
    right = op_spec("linear").reference(case.call, case.weights, case.inputs, case.state)[0]
    scale = np.abs(case.inputs[0]).max() / 127 / np.sqrt(12) * 6
    judged = check(case.call, case.weights, case.inputs, case.state, [right + 0.45 * scale], "int8")
    assert not judged.ok
    assert "together" in judged.reason


def test_a_wrong_route_is_caught_but_a_tie_is_not() -> None:
    case = made("moe_router(quant=F32,experts=64,top_k=6,k=96,tokens=5)", {}, False)
    ids, weights = op_spec("moe_router").reference(case.call, case.weights, case.inputs, case.state)
    assert check(case.call, case.weights, case.inputs, case.state, [ids[:, ::-1], weights[:, ::-1]]).ok
    other = ids.copy()
    other[2, 0] = next(e for e in range(64) if e not in ids[2])
    assert not check(case.call, case.weights, case.inputs, case.state, [other, weights]).ok
    repeated = ids.copy()
    repeated[1, 0] = repeated[1, 1]
    assert not check(case.call, case.weights, case.inputs, case.state, [repeated, weights]).ok
    same = dataclasses.replace(case.weights[0], raw=np.tile(case.weights[0].raw[: 96 * 4], 64))  # all experts alike
    equal = np.full((5, 6), 1 / 64, np.float32)
    assert check(case.call, (same,), case.inputs, case.state, [other, equal]).ok


def test_accuracy_classes() -> None:
    class Native:
        name = "cpu.avx2"

    quantised = Problem.make("linear", quant="Q4_K", n=1, k=256, tokens=1)
    assert accuracy_of(Native(), quantised) == "int8x2"
    assert accuracy_of(Native(), quantised, {"activation_planes": 1}) == "int8"
    assert accuracy_of(Native(), quantised.replace(quant="F32")) == "f32"
    assert accuracy_of(Native(), Problem.make("add", d=1, tokens=1)) == "f32"
    bf16 = quantised.replace(quant="BF16")
    for name, by_default, one_plane in (
        ("avx512_vnni", "f32", "f32"),
        ("avx512_bf16", "f32", "bf16"),
        ("amx", "bf16x2", "bf16"),
    ):
        Native.name = f"cpu.{name}"
        assert accuracy_of(Native(), bf16) == by_default
        assert accuracy_of(Native(), bf16, {"activation_planes": 1}) == one_plane
        assert accuracy_of(Native(), quantised) == "int8x2"
