"""Example calls of any problem: seeded random weights, inputs and caches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kbench.core import CPU, KV_TYPES, Attribute, OpCall, Problem, Value, quant

from .cache import Cache, as_rows, stored_shape
from .implementation import AnyArray, StepState, WeightData
from .random_weight import random_blocks, random_floats, random_weight


@dataclass(frozen=True, slots=True)
class Example:
    """One call with everything that it needs. Attention's cache holds random numbers before this call's tokens."""

    call: OpCall
    weights: tuple[WeightData, ...]
    inputs: tuple[AnyArray, ...]
    state: StepState


def _routed(tokens: int, experts: int, top_k: int, rng: np.random.Generator) -> AnyArray:
    """``top_k`` distinct experts for every token, int32 ``[tokens, top_k]``."""
    return np.argsort(rng.random((tokens, experts)), axis=-1)[:, :top_k].astype(np.int32)


def example_weights(problem: Problem, rng: np.random.Generator, *, bias: bool = False) -> tuple[WeightData, ...]:
    """The weights of a call of ``problem``, in the order of ``OpCall.weights``; empty for ops that have none.

    Raises:
        Unsupported: a shape that the storage type cannot hold, or a type that cannot be made.
    """
    p, op = problem, problem.op
    if op == "embedding":
        return (random_weight("token_embd.weight", p.text("quant"), (p.integer("d"), p.integer("vocab")), rng),)
    if op == "gated_add":  # the sigmoid's argument is about 1 large
        return (random_weight("gate.weight", "F32", (p.integer("d"),), rng, p.integer("d") ** -0.5),)
    if op == "rms_norm":
        d = p.integer("d")
        return (WeightData("norm.weight", "F32", (d,), rng.uniform(0.5, 1.5, d).astype(np.float32).view(np.uint8)),)
    if op == "moe_experts":
        experts, n, k = p.integer("experts"), p.integer("n"), p.integer("k")
        shapes = {"gate": (k, n), "up": (k, n), "down": (n, k)}
        stacks = [random_weight(w, p.text(f"quant_{w}"), (*shape, experts), rng) for w, shape in shapes.items()]
        biased = shapes if bias else {}
        vectors = [random_weight(f"{w}_bias", "F32", (rows, experts), rng, 0.5) for w, (_, rows) in biased.items()]
        return (*stacks, *vectors)
    if op == "head_linear":
        shape = (p.integer("k"), p.integer("n"), p.integer("heads"))
        return (random_weight("weight", p.text("quant"), shape, rng),)
    if op == "mla_decompressed":
        heads, kv_lora, nope, v = (p.integer(name) for name in ("heads", "kv_lora", "nope", "v"))
        if p["quant_k"] == p["quant_v"]:
            return (random_weight("kv_b.weight", p.text("quant_k"), (kv_lora, heads * (nope + v)), rng),)
        return (
            random_weight("k_b.weight", p.text("quant_k"), (nope, kv_lora, heads), rng),
            random_weight("v_b.weight", p.text("quant_v"), (kv_lora, v, heads), rng),
        )
    if op in ("linear", "moe_router"):
        n = p.integer("n" if op == "linear" else "experts")
        weight = random_weight("weight", p.text("quant"), (p.integer("k"), n), rng)
        # A router's correction bias is as large as its scores differ; a linear's as its outputs are.
        return (weight, random_weight("bias", "F32", (n,), rng, 0.5 if op == "linear" else 0.1)) if bias else (weight,)
    if op == "attention" and bias:  # sinks as large as scores are
        return (random_weight("attn_sinks.weight", "F32", (p.integer("heads"),), rng, 1.0),)
    return ()


def example(
    problem: Problem,
    rng: np.random.Generator,
    *,
    expert_subset: int | None = None,
    attrs: Mapping[str, Attribute] | None = None,
    bias: bool = False,
    weights: Sequence[WeightData] | None = None,
) -> Example:
    """A call of ``problem`` with weights, inputs and state.

    Args:
        expert_subset: only so many experts are made; the call's problem then says so too.
        attrs: replaces the operation's usual attributes one by one.
        bias: gives ``linear`` a bias, ``moe_experts`` one for each matrix, ``attention`` sinks, and ``moe_router`` a
            correction bias, or where ``attrs`` have ``logit_bias`` one of its logits.
        weights: taken instead of new ones.

    Raises:
        Unsupported: a shape that the storage type cannot hold, or a type that cannot be made.
    """
    if problem.op == "moe_experts" and expert_subset is not None:
        problem = problem.replace(experts=max(problem.integer("top_k"), min(expert_subset, problem.integer("experts"))))
    p, op, tokens = problem, problem.op, problem.integer("tokens")
    made = tuple(weights) if weights is not None else example_weights(problem, rng, bias=bias)
    usual: dict[str, Attribute] = {}
    state = StepState(np.zeros(tokens, np.int32))
    # Widths of the float32 inputs, and the outputs: (name, width).
    if op == "embedding":
        state.tokens = rng.integers(0, p.integer("vocab"), tokens, dtype=np.int32)
        widths, outputs = [], [("y", p.integer("d"))]
    elif op == "rms_norm":
        usual = {"eps": 1e-6}
        widths = [p.integer("rows") * p.integer("d")]
        outputs = [("y", widths[0])]
    elif op in ("linear", "head_linear"):
        heads = p.integer("heads") if op == "head_linear" else 1
        widths, outputs = [heads * p.integer("k")], [("y", heads * p.integer("n"))]
    elif op == "rope":
        d = p.integer("d")
        usual = {"mode": "norm", "head_dim": d, "freq_base": 10000.0, "scaling": "none"}
        state.position = int(rng.integers(0, 4096))
        widths = [p.integer("heads") * int((attrs or {}).get("head_dim", d))]  # type: ignore[arg-type]
        outputs = [("y", widths[0])]
    elif op == "attention":
        heads, kv_heads, d = (p.integer(name) for name in ("heads", "kv_heads", "d"))
        usual = {"layer": 0, "scale": 1 / math.sqrt(d)}
        widths, outputs = [heads * d, kv_heads * d, kv_heads * d], [("y", heads * d)]
    elif op == "mla_attention":
        heads, kv_lora, width = p.integer("heads"), p.integer("kv_lora"), p.integer("kv_lora") + p.integer("rope")
        usual = {"layer": 0, "scale": 1 / math.sqrt(width)}
        widths, outputs = [heads * width, width], [("y", heads * kv_lora)]
    elif op == "mla_decompressed":
        heads, width = p.integer("heads"), p.integer("nope") + p.integer("rope")
        usual = {"layer": 0, "scale": 1 / math.sqrt(width)}
        widths = [heads * width, p.integer("kv_lora") + p.integer("rope")]
        outputs = [("y", heads * p.integer("v"))]
    elif op == "moe_router":
        usual = {"scoring": "softmax", "n_group": 1, "topk_group": 1, "norm_topk_prob": 0, "routed_scaling": 1.0}
        widths, outputs = [p.integer("k")], [("ids", p.integer("top_k")), ("weights", p.integer("top_k"))]
    elif op == "expert_map":
        usual = {"experts": tuple(range(p.integer("here")))[::-1]}
        widths, outputs = [], [("ids", p.integer("top_k")), ("weights", p.integer("top_k"))]
    elif op == "moe_experts":
        widths, outputs = [p.integer("k")], [("y", p.integer("k"))]
    elif op == "top_logits":
        widths, outputs = [p.integer("vocab")], [("ids", p.integer("top_k")), ("values", p.integer("top_k"))]
    else:
        width = p.integer("n") if p.has("n") else p.integer("d")
        widths, outputs = [width] * {"silu_mul": 2, "add": 2, "gated_add": 3}.get(op, 1), [("y", width)]

    inputs: list[AnyArray] = [random_floats((tokens, width), rng) for width in widths]
    if op == "embedding":
        inputs = [state.tokens]
    elif op in ("expert_map", "moe_experts"):
        inputs.append(_routed(tokens, p.integer("experts"), p.integer("top_k"), rng))
        inputs.append(rng.uniform(0.05, 1.0, (tokens, p.integer("top_k"))).astype(np.float32))
    elif p.has("kv"):
        state.position = p.integer("context") - tokens
        state.caches = {0: example_cache(problem, rng)}
    rows = "one" if op == "take_last" else "tokens"
    values = tuple(Value(name, width, rows, "i32" if name == "ids" else "f32") for name, width in outputs)
    names = ("$tokens",) if op == "embedding" else tuple(f"x{i}" for i in range(len(inputs)))
    made_names = tuple(weight.name for weight in made)
    call = OpCall(op, problem, "", CPU, "example", names, values, made_names, {**usual, **(attrs or {})})
    return Example(call, made, tuple(inputs), state)


def example_cache(problem: Problem, rng: np.random.Generator) -> Cache:
    """A cache of random numbers with room for the problem's whole context."""
    p, kv, context = problem, problem.text("kv"), problem.integer("context")
    latent = p.has("kv_lora")
    heads, d = (1, p.integer("kv_lora") + p.integer("rope")) if latent else (p.integer("kv_heads"), p.integer("d"))

    def rows(heads: int) -> AnyArray:
        shape = stored_shape(kv, heads, context, d)
        blocks = heads * context * d // quant(KV_TYPES[kv]).block_elements
        return as_rows(kv, random_blocks(KV_TYPES[kv], blocks, 1.0, rng), shape)

    return Cache(rows(heads), rows(0 if latent else heads), kv)
