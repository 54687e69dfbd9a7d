"""How each operation's call becomes a step of a native program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from kbench.core import OpCall, Unsupported, UserError

from ..cache import Cache
from ..implementation import FloatArray
from ..reference import clamp_of, router_biases
from ..rope import rope_frequencies

if TYPE_CHECKING:
    from ._native import Matrix, Program

Item = Union[FloatArray, "Matrix", "list[Matrix]"]
Offsets = Mapping[str, int]
Caches = Mapping[int, Cache]
Emitter = Callable[["Program", str, OpCall, Sequence[Any], Offsets, Caches, int], int]


def _number(call: OpCall, name: str, default: float) -> float:
    return float(call.attrs.get(name) or default)  # type: ignore[arg-type]


def _one_row(call: OpCall) -> bool:
    return call.outputs[0].rows == "one"


def _output(call: OpCall, offsets: Offsets, index: int = 0) -> int:
    return offsets[call.outputs[index].name]


def _inputs(call: OpCall, offsets: Offsets) -> list[int]:
    return [offsets[name] for name in call.inputs]


def _cache(call: OpCall, caches: Caches) -> Cache:
    layer = int(_number(call, "layer", 0))
    if layer not in caches:
        raise UserError(f"no cache for layer {layer}", where=call.module)
    return caches[layer]


def _scale(call: OpCall, width: int) -> float:
    return _number(call, "scale", width**-0.5)


def _embedding(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    return p.embedding(isa, w[0], _output(call, o), threads=threads)


def _rms_norm(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    d, rows = call.problem.integer("d"), call.problem.integer("rows")
    width, eps = int(_number(call, "row_width", d)), float(call.attrs.get("eps", 1e-6))  # type: ignore[arg-type]
    (x,) = _inputs(call, o)
    return p.rms_norm(
        isa, x, w[0], d, rows, eps, _output(call, o), one_row=_one_row(call), row_width=width, threads=threads
    )


def _linear(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    bias = w[1] if len(w) > 1 else None
    (x,) = _inputs(call, o)
    return p.linear(isa, w[0], x, _output(call, o), bias=bias, one_row=_one_row(call), threads=threads)


def _head_linear(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    heads, n = call.problem.integer("heads"), call.problem.integer("n")
    tail = call.outputs[0].width // heads - n
    (x,) = _inputs(call, o)
    return p.head_linear(isa, w[0], x, _output(call, o), tail=tail, threads=threads)


def _rope(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    heads, d = call.problem.integer("heads"), call.problem.integer("d")
    inv_freq, factor = rope_frequencies(call.attrs, d, w[0] if w else None)
    head_dim = call.outputs[0].width // heads
    frequencies = np.ascontiguousarray(inv_freq, np.float32)
    neox = call.attrs.get("mode") == "neox"
    (x,) = _inputs(call, o)
    first = call.attrs.get("part") == "first"
    return p.rope(isa, x, _output(call, o), heads, head_dim, d, neox, frequencies, factor, first=first, threads=threads)


def _attention(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    heads, kv_heads, d = (call.problem.integer(name) for name in ("heads", "kv_heads", "d"))
    cache, (q, k, v), scale = _cache(call, c), _inputs(call, o), _scale(call, d)
    window, sinks = call.problem.integer("window"), w[0] if w else None
    return p.attention(
        isa, q, k, v, _output(call, o), heads, kv_heads, d, cache.k, cache.v, scale, window, sinks, threads=threads
    )


def _mla_attention(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    heads, kv_lora, rope, window = (call.problem.integer(name) for name in ("heads", "kv_lora", "rope", "window"))
    cache, (q, latent), scale = _cache(call, c), _inputs(call, o), _scale(call, kv_lora + rope)
    return p.mla_attention(
        isa, q, latent, _output(call, o), heads, kv_lora, rope, cache.k, scale, window, threads=threads
    )


def _mla_decompressed(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    kv_lora, rope, nope, window = (call.problem.integer(name) for name in ("kv_lora", "rope", "nope", "window"))
    # A list of all heads' matrices of keys, then of values, whether the file stores them apart or not.
    matrices = [matrix for item in w for matrix in item]
    to_k, to_v = matrices[: len(matrices) // 2], matrices[len(matrices) // 2 :]
    cache, (q, latent), scale = _cache(call, c), _inputs(call, o), _scale(call, nope + rope)
    return p.mla_decompressed(
        isa, to_k, to_v, q, latent, _output(call, o), kv_lora, rope, cache.k, scale, window, threads=threads
    )


def _silu_mul(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    gate, up = _inputs(call, o)
    return p.silu_mul(isa, gate, up, _output(call, o), call.problem.integer("n"), threads=threads)


def _add(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    a, b = _inputs(call, o)
    return p.add(isa, a, b, _output(call, o), call.problem.integer("d"), threads=threads)


def _gated_add(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    x, y, hidden = _inputs(call, o)
    return p.gated_add(isa, x, y, hidden, w[0], _output(call, o), call.problem.integer("d"), threads=threads)


def _take_last(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    (x,) = _inputs(call, o)
    return p.take_last(isa, x, _output(call, o), call.problem.integer("d"), threads=threads)


def _moe_router(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    (x,) = _inputs(call, o)
    logit_bias, bias = router_biases(call, w)
    return p.moe_router(
        isa,
        w[0],
        x,
        _output(call, o, 0),
        _output(call, o, 1),
        call.problem.integer("top_k"),
        str(call.attrs.get("scoring", "softmax")),
        int(_number(call, "n_group", 1)),
        int(_number(call, "topk_group", 1)),
        bool(call.attrs.get("norm_topk_prob")),
        _number(call, "routed_scaling", 1.0),
        bias=bias,
        logit_bias=logit_bias,
        threads=threads,
    )


def _moe_experts(p: Program, isa: str, call: OpCall, w: Sequence[Any], o: Offsets, c: Caches, threads: int) -> int:
    if call.attrs.get("masked"):
        raise Unsupported("native experts take no mask", where=call.module, accepted="ids that expert_map made")
    gate, up, down = w[:3]
    gate_bias, up_bias, down_bias = w[3:] or (None, None, None)
    x, ids, weights = _inputs(call, o)
    clamp = clamp_of(call)
    alpha, limit = clamp or (1.0, 0.0)
    return p.moe_experts(
        isa,
        gate,
        up,
        down,
        x,
        ids,
        weights,
        _output(call, o),
        call.problem.integer("top_k"),
        gate_bias=gate_bias,
        up_bias=up_bias,
        down_bias=down_bias,
        clamped=clamp is not None,
        alpha=alpha,
        limit=limit,
        threads=threads,
    )


EMITTERS: dict[str, Emitter] = {
    "embedding": _embedding, "rms_norm": _rms_norm, "linear": _linear, "head_linear": _head_linear, "rope": _rope,
    "attention": _attention, "mla_attention": _mla_attention, "mla_decompressed": _mla_decompressed,
    "silu_mul": _silu_mul, "add": _add, "gated_add": _gated_add, "take_last": _take_last, "moe_router": _moe_router,
    "moe_experts": _moe_experts,
}  # fmt: skip
