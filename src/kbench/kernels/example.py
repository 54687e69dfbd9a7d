"""Example calls of any problem: seeded random weights, inputs and caches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbench.core import CPU, Attribute, OpCall, Problem, Value

from .implementation import AnyArray, Cache, StepState, WeightData
from .random_weight import random_floats, random_weight


@dataclass(frozen=True, slots=True)
class Example:
    """One call with everything that it needs. Attention's cache holds random numbers before this call's tokens."""

    call: OpCall
    weights: tuple[WeightData, ...]
    inputs: tuple[AnyArray, ...]
    state: StepState


_DTYPES = {"f32": np.float32, "f16": np.float16}


def _routed(tokens: int, experts: int, top_k: int, rng: np.random.Generator) -> AnyArray:
    """``top_k`` distinct experts for every token, int32 ``[tokens, top_k]``."""
    return np.argsort(rng.random((tokens, experts)), axis=-1)[:, :top_k].astype(np.int32)


def example(
    problem: Problem,
    rng: np.random.Generator,
    *,
    expert_subset: int | None = None,
    attrs: Mapping[str, Attribute] | None = None,
    bias: bool = False,
) -> Example:
    """A call of ``problem`` with weights, inputs and state.

    Args:
        expert_subset: only so many experts are made; the call's problem then says so too.
        attrs: replaces the operation's usual attributes one by one.
        bias: gives ``linear`` a bias, and ``moe_router`` a correction bias.

    Raises:
        Unsupported: a shape that the storage type cannot hold, or a type that cannot be made.
    """
    op = problem.op
    if op == "moe_experts" and expert_subset is not None:
        problem = problem.replace(experts=max(problem.integer("top_k"), min(expert_subset, problem.integer("experts"))))
    p, tokens = problem, problem.integer("tokens")
    weights: list[WeightData] = []
    inputs: list[AnyArray] = []
    usual: dict[str, Attribute] = {}
    outputs: tuple[Value, ...]
    state = StepState(np.zeros(tokens, np.int32))

    def x(width: int) -> None:
        inputs.append(random_floats((tokens, width), rng))

    if op == "embedding":
        vocab, d = p.integer("vocab"), p.integer("d")
        weights = [random_weight("token_embd.weight", p.text("quant"), (d, vocab), rng)]
        state.tokens = rng.integers(0, vocab, tokens, dtype=np.int32)
        inputs = [state.tokens]
        outputs = (Value("y", d),)
    elif op == "rms_norm":
        d, rows = p.integer("d"), p.integer("rows")
        weights = [WeightData("norm.weight", "F32", (d,), _near_one(d, rng))]
        usual = {"eps": 1e-6}
        x(rows * d)
        outputs = (Value("y", rows * d),)
    elif op == "linear":
        n, k = p.integer("n"), p.integer("k")
        weights = [random_weight("weight", p.text("quant"), (k, n), rng)]
        if bias:
            weights.append(random_weight("bias", "F32", (n,), rng, 0.5))
        x(k)
        outputs = (Value("y", n),)
    elif op == "head_linear":
        heads, n, k = p.integer("heads"), p.integer("n"), p.integer("k")
        weights = [random_weight("weight", p.text("quant"), (k, n, heads), rng)]
        x(heads * k)
        outputs = (Value("y", heads * n),)
    elif op == "rope":
        heads, d = p.integer("heads"), p.integer("d")
        usual = {"mode": "norm", "head_dim": d, "freq_base": 10000.0, "scaling": "none"}
        head_dim = int((attrs or {}).get("head_dim", d))  # type: ignore[arg-type]
        state.position = int(rng.integers(0, 4096))
        x(heads * head_dim)
        outputs = (Value("y", heads * head_dim),)
    elif op in ("attention", "mla_attention"):
        context, heads = p.integer("context"), p.integer("heads")
        state.position = context - tokens
        if op == "attention":
            kv_heads, d = p.integer("kv_heads"), p.integer("d")
            usual = {"layer": 0, "scale": 1 / math.sqrt(d)}
            for width in (heads * d, kv_heads * d, kv_heads * d):
                x(width)
            shape = (kv_heads, context, d)
            outputs = (Value("y", heads * d),)
        else:
            kv_lora, width = p.integer("kv_lora"), p.integer("kv_lora") + p.integer("rope")
            usual = {"layer": 0, "scale": 1 / math.sqrt(width)}
            x(heads * width)
            x(width)
            shape = (1, context, width)
            outputs = (Value("y", heads * kv_lora),)
        dtype = _DTYPES[p.text("kv")]
        empty = np.zeros((1, 0, 0), dtype)
        k_cache = random_floats(shape, rng, dtype)
        state.caches = {0: Cache(k_cache, random_floats(shape, rng, dtype) if op == "attention" else empty)}
    elif op == "moe_router":
        experts, k, top_k = p.integer("experts"), p.integer("k"), p.integer("top_k")
        weights = [random_weight("weight", p.text("quant"), (k, experts), rng)]
        if bias:
            weights.append(random_weight("bias", "F32", (experts,), rng, 0.1))
        usual = {"scoring": "softmax", "n_group": 1, "topk_group": 1, "norm_topk_prob": 0, "routed_scaling": 1.0}
        x(k)
        outputs = (Value("ids", top_k, dtype="i32"), Value("weights", top_k))
    elif op == "moe_experts":
        experts, top_k, n, k = (p.integer(name) for name in ("experts", "top_k", "n", "k"))
        weights = [
            random_weight("gate", p.text("quant_gate"), (k, n, experts), rng),
            random_weight("up", p.text("quant_up"), (k, n, experts), rng),
            random_weight("down", p.text("quant_down"), (n, k, experts), rng),
        ]
        x(k)
        inputs.append(_routed(tokens, experts, top_k, rng))
        inputs.append(rng.uniform(0.05, 1.0, (tokens, top_k)).astype(np.float32))
        outputs = (Value("y", k),)
    else:
        width = p.integer("n") if p.has("n") else p.integer("d")
        for _ in range(2 if op in ("silu_mul", "add") else 1):
            x(width)
        outputs = (Value("y", width, "one" if op == "take_last" else "tokens"),)
    names = tuple(f"x{i}" for i in range(len(inputs))) if op != "embedding" else ("$tokens",)
    call = OpCall(
        op, problem, "", CPU, "example", names, outputs, tuple(w.name for w in weights), {**usual, **(attrs or {})}
    )
    return Example(call, tuple(weights), tuple(inputs), state)


def _near_one(d: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    return rng.uniform(0.5, 1.5, d).astype(np.float32).view(np.uint8)
