"""Lowered models: the flow of values, the shapes, the contract's order, and moves between devices."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from tiny_models import ARCHITECTURES, make_tiny

from kbench.core import AUTO, CPU, Device, Module, OpCall, Phase, Placement, Problem, TensorInfo, UserError, work
from kbench.model import ModelDescriptor, build_tree, embedded, lower

GPU = Device("cuda")
ON_GPU = Placement(GPU, AUTO, GPU, AUTO)


def by_device(problem: Problem, device: Device) -> str:
    return f"best.{device.kind}"


def decode(m: ModelDescriptor, assignment: dict[str, Placement] | None = None) -> tuple[OpCall, ...]:
    return lower(m, assignment or {}, Phase.DECODE, 1, 100, resolve=by_device)


def modules(m: ModelDescriptor) -> dict[str, Module]:
    return {module.name: module for module in build_tree(m).walk()}


def check_flow(calls: Sequence[OpCall]) -> None:
    """Each value is made once, before it is read, and read where it is."""
    home: dict[str, Device] = {}
    for call in calls:
        assert call.op == call.problem.op
        for name in call.inputs:
            if name == "$tokens":
                continue
            assert (home[name] == call.device) != (call.op == "transfer")
        for value in call.outputs:
            assert value.name not in home
            home[value.name] = call.device


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("phase", list(Phase))
def test_values_weights_and_modules_fit(architecture: str, phase: Phase) -> None:
    m = make_tiny(architecture)
    tree, tensors = modules(m), m.tensors_by_name
    tokens = 1 if phase is Phase.DECODE else 7
    calls = lower(m, {}, phase, tokens, 100, resolve=by_device)
    check_flow(calls)
    width = {value.name: value.width for call in calls for value in call.outputs}
    for call in calls:
        p = call.problem
        own = {tensor.name for tensor in tree[call.module].tensors}
        assert set(call.weights) <= own
        if call.op == "linear":
            assert tensors[call.weights[0]].shape == (p["k"], p["n"])
            assert tensors[call.weights[0]].quant == p["quant"]
            assert width[call.inputs[0]] == p["k"]
            assert call.outputs[0].width == p["n"]
        if call.op in ("add", "silu_mul"):
            assert {width[name] for name in call.inputs} == {p["d" if call.op == "add" else "n"]}
        if call.op == "moe_experts":
            assert [width[name] for name in call.inputs] == [p["k"], p["top_k"], p["top_k"]]
        if call.op == "mla_decompressed":
            heads, row = p.integer("heads"), p.integer("kv_lora") + p.integer("rope")
            assert [width[name] for name in call.inputs] == [heads * (p.integer("nope") + p.integer("rope")), row]
            assert call.outputs[0].width == heads * p.integer("v")
        if call.op == "mla_attention":
            row = p.integer("kv_lora") + p.integer("rope")
            assert [width[name] for name in call.inputs] == [p.integer("heads") * row, row]
            assert call.outputs[0].width == p.integer("heads") * p.integer("kv_lora")
    assert {name for call in calls for name in call.weights} == set(tensors)
    assert calls[-1].outputs[0].name == "logits"
    assert (calls[-1].outputs[0].rows, calls[-1].outputs[0].width) == ("one", m.vocab)


LLAMA_LAYER = [
    ("rms_norm", "input_layernorm"), ("linear", "self_attn.q_proj"), ("linear", "self_attn.k_proj"),
    ("linear", "self_attn.v_proj"), ("rope", "self_attn"), ("rope", "self_attn"), ("attention", "self_attn"),
    ("linear", "self_attn.o_proj"), ("add", ""), ("rms_norm", "post_attention_layernorm"),
    ("linear", "mlp.gate_proj"), ("linear", "mlp.up_proj"), ("silu_mul", "mlp"), ("linear", "mlp.down_proj"),
    ("add", ""),
]  # fmt: skip


def test_a_llama_layer_call_by_call() -> None:
    calls = decode(make_tiny(n_layers=2))
    got = [(call.op, call.module) for call in calls]
    layers = [(op, f"model.layers.{i}{'.' if part else ''}{part}") for i in range(2) for op, part in LLAMA_LAYER]
    tail = [("take_last", "model.norm"), ("rms_norm", "model.norm"), ("linear", "lm_head")]
    assert got == [("embedding", "model.embed_tokens"), *layers, *tail]


def test_what_tells_architectures_apart() -> None:
    qwen3 = decode(make_tiny("qwen3", n_layers=1))
    norms = [call.problem for call in qwen3 if call.module.endswith(("q_norm", "k_norm"))]
    assert [(p["d"], p["rows"]) for p in norms] == [(64, 4), (64, 2)]
    qwen2 = decode(make_tiny("qwen2", n_layers=1))
    biased = [call.module.rsplit(".", 1)[-1] for call in qwen2 if call.weights[1:]]
    assert biased == ["q_proj", "k_proj", "v_proj"]
    modes = {a: {c.attrs["mode"] for c in decode(make_tiny(a)) if c.op == "rope"} for a in ARCHITECTURES[:3]}
    assert modes == {"llama": {"norm"}, "qwen2": {"neox"}, "qwen3": {"neox"}}


def test_frequency_factors_go_to_every_rope() -> None:
    m = make_tiny()
    factors = TensorInfo("rope_freqs.weight", (32,), "F32", "attention")
    with_factors = dataclasses.replace(m, tensors=(*m.tensors, factors))
    calls = decode(with_factors)
    assert all(call.weights == ("rope_freqs.weight",) for call in calls if call.op == "rope")


def test_a_tied_head_reads_the_embedding() -> None:
    assert decode(make_tiny(tied=True))[-1].weights == ("token_embd.weight",)


def test_flops_are_two_per_weight_and_token() -> None:
    m = make_tiny()
    calls = lower(m, {}, Phase.PREFILL, 5, 5, logits="all", resolve=by_device)
    got = sum(work(call.problem).flops for call in calls if call.op == "linear")
    matrices = sum(t.n_elements for t in m.tensors if len(t.shape) == 2 and t.kind != "embedding")
    assert got == 2 * 5 * matrices


def test_mla_scale_has_yarns_temperature() -> None:
    m = embedded("deepseek-v2-chat")
    scale = next(call.attrs["scale"] for call in decode(m) if call.op == "mla_attention")
    # The model's own code: head_dim ** -0.5 * (0.1 * mscale_all_dim * ln(factor) + 1) ** 2
    assert scale == pytest.approx(192**-0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2)


@pytest.mark.parametrize(
    ("tokens", "context", "chosen", "op"),
    [
        (256, 256, None, "mla_decompressed"),
        (256, 32768, None, "mla_decompressed"),
        (128, 32768, None, "mla_attention"),  # few new tokens do not pay for decompressing a long past
        (16, 4096, None, "mla_attention"),
        (16, 4096, False, "mla_decompressed"),
        (256, 256, True, "mla_attention"),
    ],
)
def test_prefill_absorbs_where_it_pays_or_where_a_rule_says_so(
    tokens: int, context: int, chosen: bool | None, op: str
) -> None:
    m = embedded("deepseek-v2-chat")
    rules = {f"model.layers.{i}.self_attn": Placement(absorb_for_prefill=chosen) for i in range(m.n_layers)}
    calls = lower(m, rules, Phase.PREFILL, tokens, context, resolve=lambda problem, device: "reference")
    counts = Counter(call.op for call in calls)
    assert counts[op] == 60 and counts["head_linear"] == (0 if op == "mla_decompressed" else 120)
    step = lower(m, rules, Phase.DECODE, 1, context, resolve=lambda problem, device: "reference")
    assert Counter(call.op for call in step)["mla_attention"] == 60  # decode always absorbs


def test_deepseek_v2_has_the_calls_of_its_layers() -> None:
    counts = Counter(call.op for call in decode(embedded("deepseek-v2-chat")))
    assert counts["mla_attention"] == 60
    assert counts["moe_experts"] == counts["moe_router"] == 59
    assert counts["head_linear"] == 120
    # per layer: q_a, q_b, kv_a, o and three of an MLP or of the shared experts; the head
    assert counts["linear"] == 60 * 7 + 1


def test_router_attributes() -> None:
    call = next(call for call in decode(make_tiny("deepseek-v3")) if call.op == "moe_router")
    assert call.weights == ("blk.1.ffn_gate_inp.weight", "blk.1.exp_probs_b.bias")
    assert call.attrs == {
        "scoring": "sigmoid",
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": 1,
        "routed_scaling": 2.5,
    }
    assert [(value.width, value.dtype) for value in call.outputs] == [(2, "i32"), (2, "f32")]


def test_logits_of_all_tokens_or_of_the_last() -> None:
    m = make_tiny()
    for phase, tokens, logits, rows in [
        (Phase.PREFILL, 5, "last", "one"),
        (Phase.PREFILL, 5, "all", "tokens"),
        (Phase.DECODE, 1, "last", "one"),
        (Phase.DECODE, 4, "last", "tokens"),  # four sequences, each with its own next token
    ]:
        calls = lower(m, {}, phase, tokens, 50, logits=logits, resolve=by_device)
        assert calls[-1].outputs[0].rows == rows
        assert calls[-1].problem["tokens"] == (1 if rows == "one" else tokens)
        assert any(call.op == "take_last" for call in calls) == (rows == "one")


@pytest.mark.parametrize(
    ("phase", "tokens", "context", "kv", "logits"),
    [
        (Phase.DECODE, 0, 5, "f16", "last"),
        (Phase.PREFILL, 6, 5, "f16", "last"),
        (Phase.DECODE, 1, 0, "f16", "last"),
        (Phase.DECODE, 1, 5, "q9", "last"),
        (Phase.DECODE, 1, 5, "f16", "first"),
    ],
)
def test_senseless_requests(phase: Phase, tokens: int, context: int, kv: str, logits: str) -> None:
    with pytest.raises(UserError):
        lower(make_tiny(), {}, phase, tokens, context, kv=kv, logits=logits, resolve=by_device)


def test_the_assignment_decides_and_resolve_fills_in() -> None:
    placement = Placement(CPU, "mine", CPU, AUTO, threads=3, block={"rows": 16})
    assignment = {"model.layers.1.mlp.up_proj": placement}
    asked: list[Problem] = []

    def resolve(problem: Problem, device: Device) -> str:
        asked.append(problem)
        return "theirs"

    m = make_tiny()
    for phase, name in ((Phase.DECODE, "mine"), (Phase.PREFILL, "theirs")):
        asked.clear()
        calls = lower(m, assignment, phase, 1, 10, resolve=resolve)
        for call in calls:
            chosen = call.module == "model.layers.1.mlp.up_proj"
            assert call.implementation == (name if chosen else "theirs")
            assert (call.threads, dict(call.block)) == ((3, {"rows": 16}) if chosen else (None, {}))
        assert len(asked) == len(set(asked))  # once per problem


def test_everything_on_the_gpu_moves_nothing() -> None:
    m = make_tiny("deepseek2")
    calls = decode(m, dict.fromkeys(modules(m), ON_GPU))
    assert {call.device for call in calls} == {GPU}
    assert not any(call.op == "transfer" for call in calls)


def test_experts_on_the_cpu_cost_four_moves_a_layer() -> None:
    """x, ids and weights there, the result back: each once."""
    m = make_tiny("deepseek2")
    assignment = {name: ON_GPU for name in modules(m) if not name.endswith(".experts")}
    calls = lower(m, assignment, Phase.PREFILL, 5, 10, resolve=by_device)
    check_flow(calls)
    moves = [call for call in calls if call.op == "transfer"]
    assert len(moves) == 4 * 2  # of three layers one is dense
    assert Counter((str(call.problem["src"]), str(call.problem["dst"])) for call in moves) == {
        ("cuda:0", "cpu"): 6,
        ("cpu", "cuda:0"): 2,
    }
    assert sorted(call.problem.integer("d") for call in moves[:4]) == [2, 2, 256, 256]
    assert all(call.problem["tokens"] == 5 for call in moves)
    for call in calls:
        assert call.device == (CPU if call.module.endswith(".experts") and call.op != "transfer" else call.device)


def test_a_value_is_moved_once_for_all_its_readers() -> None:
    m = make_tiny(n_layers=1)
    assignment = {f"model.layers.0.self_attn.{part}_proj": ON_GPU for part in "qkv"}
    calls = decode(m, assignment)
    check_flow(calls)
    moves = [call for call in calls if call.op == "transfer"]
    there = [call for call in moves if call.device == GPU]
    assert [call.inputs for call in there] == [("model.layers.0.input_layernorm",)]
    assert there[0].outputs[0].name == "model.layers.0.input_layernorm@cuda:0"
    assert len(moves) == 1 + 3


def test_out_device_moves_a_result_at_once() -> None:
    m = make_tiny("deepseek2", n_layers=2)
    assignment: dict[str, Placement] = dict.fromkeys(modules(m), ON_GPU)
    assignment["model.layers.1.mlp.experts"] = Placement(out_device=GPU)
    eager = decode(m, assignment)
    check_flow(eager)
    index = next(i for i, call in enumerate(eager) if call.op == "moe_experts")
    assert eager[index + 1].op == "transfer"
    assert eager[index + 1].inputs == ("model.layers.1.mlp.experts",)
    assignment["model.layers.1.mlp.experts"] = Placement()
    lazy = decode(m, assignment)
    index = next(i for i, call in enumerate(lazy) if call.op == "moe_experts")
    assert lazy[index + 1].op == "linear"  # the shared experts run meanwhile
    assert Counter(call.op for call in lazy) == Counter(call.op for call in eager)


def test_out_device_leaves_a_modules_inner_values_alone() -> None:
    m = make_tiny(n_layers=1)
    calls = decode(m, {"model.layers.0.self_attn": Placement(out_device=GPU)})
    moved = [call.inputs[0] for call in calls if call.op == "transfer" and call.device == GPU]
    assert moved == ["model.layers.0.self_attn"]
