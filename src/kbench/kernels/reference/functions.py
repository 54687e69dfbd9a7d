"""What every operation means, in numpy: never fast, but clear.

Each function takes ``(call, weights, inputs, state)`` and computes in the type of its inputs (float32 or float64).
Activations are ``[rows, width]``. Softmax, norms and rotations are as Hugging Face transformers computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall

from ..cache import Cache, append, cached, decode, first_seen
from ..expert_subset import pairs_here, visited
from ..implementation import StepState
from ..rope import rope_frequencies
from .experts import clamp_of, gated, sigmoid, silu
from .routing import route, router_biases, router_logits, softmax
from .tensor import Tensor

Array = npt.NDArray[Any]
Function = Callable[[OpCall, Sequence[Tensor], Sequence[Array], StepState], list[Array]]


def _number(call: OpCall, name: str, default: float) -> float:
    return float(call.attrs.get(name, default))  # type: ignore[arg-type]


def embedding(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    return [weights[0].rows(state.tokens)]


def rms_norm(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    """Vectors may be longer than ``d`` (attribute ``row_width``): what is behind passes through (MLA's latent)."""
    d = call.problem.integer("d")
    rows = inputs[0].reshape(-1, int(_number(call, "row_width", d)))
    x = rows[:, :d]
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(_number(call, "eps", 1e-6)))
    return [np.concatenate([x * scale * weights[0].vector(), rows[:, d:]], axis=-1).reshape(inputs[0].shape)]


def linear(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    y = inputs[0] @ weights[0].matrix().T
    return [y if len(weights) == 1 else y + weights[1].vector()]


def head_matrix(call: OpCall, whole: Array, head: int) -> Array:
    """``[n, k]`` of one head. ``whole`` is ``[heads, n, k]``, or a layer's ``kv_b`` ``[heads * (nope + v), kv_lora]``,
    of which attribute ``half`` takes each head's first rows, transposed (``k``), or its last (``v``)."""
    heads, n, k = (call.problem.integer(name) for name in ("heads", "n", "k"))
    if whole.ndim == 3:
        return np.asarray(whole[head])
    rows = whole.reshape(heads, -1, whole.shape[-1])[head]
    return np.asarray(rows[:k].T if call.attrs.get("half") == "k" else rows[len(rows) - n :])


def head_linear(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    """Each head's vector may be longer than ``k``: the rest passes through behind the result when the output has
    room for it (the rotated part of MLA's queries), and is dropped when it has not."""
    heads, n, k = (call.problem.integer(name) for name in ("heads", "n", "k"))
    x = inputs[0].reshape(len(inputs[0]), heads, -1)
    whole = weights[0].stack()
    y = np.stack([x[:, h, :k] @ head_matrix(call, whole, h).T for h in range(heads)], axis=1)
    rest = call.outputs[0].width // heads - n
    if rest:
        y = np.concatenate([y, x[:, :, k : k + rest]], axis=-1)
    return [y.reshape(len(x), -1)]


def rotate(x: Array, cos: Array, sin: Array, neox: bool) -> Array:
    """Turns pairs of the last axis: halves (``i``, ``i + d/2``) for neox, neighbours (``2i``, ``2i + 1``) otherwise."""
    if neox:
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    first, second = x[..., 0::2], x[..., 1::2]
    return np.stack([first * cos - second * sin, second * cos + first * sin], axis=-1).reshape(x.shape)


def rope(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    heads, d = call.problem.integer("heads"), call.problem.integer("d")
    x = inputs[0].reshape(len(inputs[0]), heads, -1)
    inv_freq, factor = rope_frequencies(call.attrs, d, weights[0].vector() if weights else None)
    angles = state.positions[:, None, None].astype(x.dtype) * inv_freq.astype(x.dtype)
    scale = x.dtype.type(factor)
    first = call.attrs.get("part") == "first"
    turning = x[..., :d] if first else x[..., -d:]
    turned = rotate(turning, np.cos(angles) * scale, np.sin(angles) * scale, call.attrs.get("mode") == "neox")
    parts = [turned, x[..., d:]] if first else [x[..., :-d], turned]
    return [np.concatenate(parts, axis=-1).reshape(inputs[0].shape)]


def cache_of(call: OpCall, state: StepState) -> Cache:
    return state.caches[int(call.attrs.get("layer", 0))]  # type: ignore[arg-type]


def visible_positions(tokens: int, position: int, window: int = 0) -> Array:
    """Which of ``position + tokens`` cached positions each of the last ``tokens`` sees: ``[tokens, cached]`` of bool.

    A token at position p sees ``[low, p]``: low is 0, or with a window ``max(0, p - window + 1)``."""
    p = position + np.arange(tokens)[:, None]
    cached = np.arange(position + tokens)[None, :]
    return np.asarray((cached <= p) & ((cached > p - window) if window else True))


def _attend(
    q: Array, keys: Array, values: Array, position: int, scale: float, window: int = 0, sinks: Array | None = None
) -> Array:
    """``q [heads, tokens, d]`` over ``keys [cached, d]``, ``values [cached, dv]``, causal: ``[heads, tokens, dv]``.

    ``sinks [heads]``: one more score a row, whose value is zero."""
    # As one product of all heads' rows: numpy would take head by head, and read the keys once for each.
    scores = (q.reshape(-1, q.shape[-1]) @ keys.T).reshape(*q.shape[:2], -1) * q.dtype.type(scale)
    scores = np.where(visible_positions(q.shape[1], position, window), scores, -np.inf)
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (*q.shape[:2], 1))], axis=-1)
    p = softmax(scores).astype(q.dtype, copy=False)[..., : len(keys)]
    return np.asarray((p.reshape(-1, p.shape[-1]) @ values).reshape(*q.shape[:2], -1))


def attention(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    """Parameter ``window`` (0: none): a token at position p sees positions ``[max(0, p - window + 1), p]``. Attributes:
    ``layer`` (whose cache), ``scale`` (of scores; default ``1/sqrt(d)``). An optional weight ``[heads]`` holds sinks:
    scores, not scaled, that join each row's softmax with a value of zero (they make the denominator larger)."""
    heads, kv_heads, d, window = (call.problem.integer(name) for name in ("heads", "kv_heads", "d", "window"))
    group, scale = heads // kv_heads, _number(call, "scale", 1 / math.sqrt(d))
    sinks = weights[0].vector() if weights else None
    y = np.empty_like(inputs[0])
    for sequence, position, rows in state.parts():
        q, k, v = (a[rows].reshape(rows.stop - rows.start, -1, d).transpose(1, 0, 2) for a in inputs)
        keys, values = _kept(call, state, (k, v), sequence, position, q.dtype)
        begin = first_seen(position, window)
        attended = [
            _attend(
                q[h * group : (h + 1) * group],
                keys[h],
                values[h],
                position - begin,
                scale,
                window,
                None if sinks is None else sinks[h * group : (h + 1) * group],
            )
            for h in range(kv_heads)
        ]
        y[rows] = np.concatenate(attended).transpose(1, 0, 2).reshape(len(y[rows]), heads * d)
    return [y]


def _kept(
    call: OpCall, state: StepState, rows: Sequence[Array], sequence: int, position: int, dtype: npt.DTypeLike
) -> list[Array]:
    """Appends a sequence's new ``rows`` (of k, or of k and v, ``[heads, tokens, d]``) to the cache; what is cached
    there from the first position on that any of them sees."""
    cache, window = cache_of(call, state), call.problem.integer("window")
    end, found = position + rows[0].shape[1], []
    for stored, new in zip((cache.k, cache.v), rows, strict=False):
        append(stored, cache.kv, sequence, position, new, window)
        found.append(decode(cache.kv, cached(stored, sequence, first_seen(position, window), end), dtype))
    return found


def mla_attention(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    """``window`` and the attributes as for ``attention``."""
    heads, kv_lora, rope_d, window = (call.problem.integer(name) for name in ("heads", "kv_lora", "rope", "window"))
    scale = _number(call, "scale", 1 / math.sqrt(kv_lora + rope_d))
    y = np.empty((len(inputs[0]), heads * kv_lora), inputs[0].dtype)
    for sequence, position, rows in state.parts():
        q = inputs[0][rows].reshape(-1, heads, kv_lora + rope_d).transpose(1, 0, 2)
        ((latent,),) = _kept(call, state, (inputs[1][rows][None],), sequence, position, q.dtype)
        # The keys are the whole latent, the values its first part: nothing is decompressed.
        attended = _attend(q, latent, latent[:, :kv_lora], position - first_seen(position, window), scale, window)
        y[rows] = attended.transpose(1, 0, 2).reshape(-1, heads * kv_lora)
    return [y]


def expansion(call: OpCall, weights: Sequence[Array]) -> tuple[Array, Array]:
    """``k [heads, nope, kv_lora]`` and ``v [heads, v, kv_lora]`` of what a file stores: a layer's ``kv_b``, per head
    ``nope`` rows of k and ``v`` rows of v; or ``k_b [heads, kv_lora, nope]`` and ``v_b [heads, v, kv_lora]``."""
    if len(weights) == 2:
        return weights[0].swapaxes(1, 2), weights[1]
    nope = call.problem.integer("nope")
    rows = weights[0].reshape(call.problem.integer("heads"), -1, weights[0].shape[-1])
    return rows[:, :nope], rows[:, nope:]


def mla_decompressed(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    """``window`` and the attributes as for ``attention``."""
    p = call.problem
    heads, kv_lora, width, window = (
        p.integer("heads"),
        p.integer("kv_lora"),
        p.integer("nope") + p.integer("rope"),
        p.integer("window"),
    )
    to_k, to_v = expansion(call, [weight.stack() for weight in weights])
    scale = _number(call, "scale", 1 / math.sqrt(width))
    y = np.empty((len(inputs[0]), heads * p.integer("v")), inputs[0].dtype)
    for sequence, position, rows in state.parts():
        q = inputs[0][rows].reshape(-1, heads, width).transpose(1, 0, 2)
        ((latent,),) = _kept(call, state, (inputs[1][rows][None],), sequence, position, q.dtype)
        c, rotated = latent[:, :kv_lora], latent[:, kv_lora:]
        first = position - first_seen(position, window)
        attended = [
            _attend(q[h : h + 1], np.concatenate([c @ to_k[h].T, rotated], -1), c @ to_v[h].T, first, scale, window)
            for h in range(heads)
        ]
        y[rows] = np.concatenate(attended).transpose(1, 0, 2).reshape(q.shape[1], -1)
    return [y]


def silu_mul(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    return [silu(inputs[0]) * inputs[1]]


def add(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    return [inputs[0] + inputs[1]]


def gated_add(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    x, y, hidden = inputs
    return [x + sigmoid(hidden @ weights[0].vector())[:, None] * y]


def take_last(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    return [inputs[0][-1:]]


def top_logits(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    """Of equal logits the lower id comes first."""
    order = np.argsort(-inputs[0], axis=-1, kind="stable")[:, : call.problem.integer("top_k")]
    return [order.astype(np.int32), np.take_along_axis(inputs[0], order, axis=-1)]


def transfer(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    return [inputs[0]]


def moe_router(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    _, bias = router_biases(call, [weight.vector() for weight in weights])
    return list(route(router_logits(call, weights, inputs[0]), call.problem.integer("top_k"), call.attrs, bias))


def expert_map(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    """Attribute ``experts``: those that are here, in the order of their places."""
    ids, scores = inputs
    return list(pairs_here(call.attrs["experts"], ids, scores))  # type: ignore[arg-type]


def moe_experts(call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], state: StepState) -> list[Array]:
    """Weights are three stacks of matrices, and perhaps as many of biases."""
    x, ids, scores = inputs
    clamp = clamp_of(call)

    def project(part: int, rows: Array, place: int) -> Array:
        product = rows @ weights[part].matrix(place).T
        return np.asarray(product if len(weights) == 3 else product + weights[3 + part].rows([place]))

    y = np.zeros_like(x)
    for expert, place in visited(call, np.unique(ids).tolist()):
        token, slot = np.nonzero(ids == expert)
        rows = x[token]
        hidden = gated(project(0, rows, place), project(1, rows, place), clamp)
        # A router that was given NaN may choose an expert twice.
        np.add.at(y, token, scores[token, slot][:, None].astype(x.dtype) * project(2, hidden, place))
    return [y]


FUNCTIONS: dict[str, Function] = {
    "embedding": embedding, "rms_norm": rms_norm, "linear": linear, "head_linear": head_linear, "rope": rope,
    "attention": attention, "mla_attention": mla_attention, "mla_decompressed": mla_decompressed,
    "silu_mul": silu_mul, "add": add, "gated_add": gated_add,
    "moe_router": moe_router, "expert_map": expert_map, "moe_experts": moe_experts, "take_last": take_last,
    "top_logits": top_logits, "transfer": transfer,
}  # fmt: skip
