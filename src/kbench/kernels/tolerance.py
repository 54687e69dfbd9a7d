"""How far an output may lie from the truth, derived per element from norms and from what the arithmetic rounds.

Four sources of error, with ``u`` the unit roundoff (half the distance to the next number, relative):

* Sums. ``k`` terms added in float32 in any order are off by at most ``lambda * sqrt(k) * u * sum|terms|`` but for a
  vanishing probability (Higham & Mary 2019, roundings as independent errors of mean 0; lambda 6 leaves 1e-7). The
  worst case, ``k * u``, would be so wide that it hides real mistakes.
* Factors rounded to a smaller type (bf16 products): each term is off by ``u`` of itself, twice (weight and
  activation), independently: 6 standard deviations are ``6 * u * sqrt(2/3) * sqrt(sum w^2 x^2)``.
* Keys and values rounded to the cache's type: none. Rounding them is part of what a cache type means, the truth is
  computed from the rounded ones, and ``cache`` defines the rounding to the last bit. The native tests compare bytes.
* Activations quantised to int8 by blocks of 32: an element is off by at most ``scale/2``, ``scale`` = the block's
  largest magnitude / 127. ``int8x2`` is a second plane for what the first rounded away (``scale/508``), or, where many
  tokens are multiplied, one int16 of 14 bits (``scale/129``): the bound is the wider one's. The hard bound
  ``sum |w| scale/2`` exceeds what happens by ``sqrt(k)`` and would hide a missing block; uniform errors have deviation
  ``scale/sqrt(12)``, so ``6 sqrt(sum w^2 scale^2 / 12)`` is allowed.
* Weights rounded anew to 4 bits in groups of 128 (``int4``): each is off by at most half a step of the group's largest
  weight / 7, as above with deviation ``step/sqrt(12)``; what chooses steps only ever takes one with smaller errors.
  Activations are float16. Whether a kernel multiplies the numbers that it was given is for a narrower test: of its own
  rounded weights, within ``f16``.

``6`` is one safety factor for all: outputs are checked by the million, and 6 deviations are passed once in 5e8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import Block, OpCall, Problem, quant

from .cache import cached, decode, first_seen
from .expert_subset import visited
from .implementation import StepState
from .reference import (
    FUNCTIONS,
    Tensor,
    cache_of,
    choice_scores,
    clamp_of,
    expansion,
    head_matrix,
    router_biases,
    router_logits,
    visible_positions,
)

Array = npt.NDArray[Any]

# Unit roundoff by significant bits: 24, 11, 8.
ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
# What an implementation's products are made of; int8: quantised activations, float32 sums; int8x2: in two planes;
# bf16x2: exact weights, activations in two bfloat16 terms; int8k: one scale for 256 activations, bfloat16 in and out,
# as kt-kernel does; int4: weights rounded to 4 bits, activations to float16.
ACCURACIES = ("f32", "f16", "bf16", "bf16x2", "int8", "int8x2", "int8k", "int4")
# The steps of an activation's rounding between a block's largest magnitude and 0.
_STEPS = {"int8": 127, "int8x2": 8191, "int8k": 127}
# Implementations that multiply BF16 weights in that type: activations in one term, or, in tile registers, in two.
_BF16_KERNELS = ("cpu.avx512_bf16", "cpu.amx")
SAFETY = 6.0
# Half a step of float16's smallest numbers: what rounding takes of a number below 2^-14.
SUBNORMAL = 2.0**-25
INT8_BLOCK = 32
# Of the class int8k: the superblock of K-quants.
INT8K_BLOCK = 256
INT4_GROUP = 128
# The parameters of problems that are storage types of weights.
QUANTS = ("quant", "quant_gate", "quant_up", "quant_down", "quant_k", "quant_v")
# exp, sin, cos, rsqrt of vectorised kernels are good to a few units in the last place; 16 is 1e-6 relative.
FUNCTION_ULPS = 16

_U = ROUNDOFF["f32"]


def accuracy_of(implementation: object, problem: Problem, block: Block | None = None) -> str:
    """The accuracy class of an implementation on ``problem`` under kernel parameters ``block``.

    An implementation may say so itself by a method ``accuracy(problem)``. By default ``cpu.*`` kernels quantise
    activations for weights of quantised types that they pack and for nothing else, and everything else computes in
    float32.
    """
    own: Callable[[Problem], str] | None = getattr(implementation, "accuracy", None)
    if own is not None:
        return own(problem)
    name = getattr(implementation, "name", "")
    if not name.startswith("cpu."):
        return "f32"
    from .cpu.matrices import DEQUANTISED_FORMATS  # where the extension is not installed, nothing is called cpu.*

    one_plane = (block or {}).get("activation_planes") == 1
    names = [field for field in QUANTS if problem.has(field)]
    matrix = problem.op in ("linear", "head_linear", "mla_decompressed", "moe_experts", "moe_router")
    types = {problem.text(field) for field in names}
    quantised = any(not quant(type_).is_float and type_ not in DEQUANTISED_FORMATS for type_ in types)
    if matrix and quantised:
        return "int8" if one_plane else "int8x2"
    if matrix and "BF16" in types and one_plane and name in _BF16_KERNELS:
        return "bf16"
    if matrix and "BF16" in types and name == "cpu.amx":
        return "bf16x2"
    return "f32"


def _activation_scale(x: Array, accuracy: str) -> Array:
    """Each element's rounding step, ``[rows, k]``."""
    k = x.shape[-1]
    block = INT8K_BLOCK if accuracy == "int8k" else INT8_BLOCK
    padded = np.pad(np.abs(x), ((0, 0), (0, -k % block)))
    largest = padded.reshape(len(x), -1, block).max(axis=-1)
    return np.repeat(largest / _STEPS[accuracy], block, axis=-1)[:, :k]


def _int4_steps(w: Array) -> Array:
    """Each weight's rounding step, ``[n, k]``."""
    k = w.shape[-1]
    grouped = np.pad(np.abs(w), ((0, 0), (0, -k % INT4_GROUP))).reshape(len(w), -1, INT4_GROUP)
    return np.repeat(grouped.max(axis=-1) / 7, INT4_GROUP, axis=-1)[:, :k]


def product_bound(w: Array, x: Array, accuracy: str, x_error: Array | None = None) -> Array:
    """Bound of ``x @ w.T``: ``w [n, k]``, ``x [rows, k]`` -> ``[rows, n]``; ``x_error`` is a bound on ``x`` itself."""
    k = w.shape[1]
    magnitude = np.abs(x) @ np.abs(w).T
    bound = SAFETY * math.sqrt(k) * _U * magnitude
    squares: Array = np.zeros_like(x)
    if accuracy in _STEPS:
        squares = np.square(_activation_scale(x, accuracy)) / 12
        if accuracy == "int8k":
            squares = squares + np.square(x) * (ROUNDOFF["bf16"] ** 2 / 3)
            bound += ROUNDOFF["bf16"] * np.abs(x @ w.T)
    elif accuracy == "int4":
        u = ROUNDOFF["f16"]
        squares = np.square(x) * (u * u * 2 / 3)
        bound += u * np.abs(x @ w.T) + SAFETY * np.sqrt(np.square(x) @ (np.square(_int4_steps(w)) / 12).T)
    elif accuracy in ("bf16", "f16"):
        u = ROUNDOFF[accuracy]
        squares = np.square(x) * (u * u * 2 / 3)
        bound += u * np.abs(x @ w.T)  # the output is rounded too
    elif accuracy == "bf16x2":
        # What rounding took from the first term is rounded again: u * u is left, evenly distributed, of x alone.
        squares = np.square(x) * (ROUNDOFF["bf16"] ** 4 / 3)
    if x_error is not None:
        squares = squares + np.square(x_error / SAFETY)  # a bound is SAFETY deviations
    return np.asarray(bound + SAFETY * np.sqrt(squares @ np.square(w).T))


def _linear(call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str) -> Array:
    return product_bound(w[0].matrix(), x[0], a) + _U * np.abs(y[0])


def _head_linear(
    call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str
) -> Array:
    heads, k = call.problem.integer("heads"), call.problem.integer("k")
    rows = x[0].reshape(len(x[0]), heads, -1)
    whole = w[0].stack()
    bounds = np.zeros((len(rows), heads, call.outputs[0].width // heads))
    for h in range(heads):
        bound = product_bound(head_matrix(call, whole, h), rows[:, h, :k], a)
        bounds[:, h, : bound.shape[1]] = bound
    return np.asarray(bounds.reshape(len(rows), -1))


def _moe_experts(
    call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str
) -> Array:
    tokens, ids, scores = x
    alpha, limit = clamp_of(call) or (1.0, math.inf)
    shift = 0 if math.isinf(limit) else 1
    total = np.zeros_like(y[0])
    for expert, place in visited(call, np.unique(ids).tolist()):
        token, slot = np.nonzero(ids == expert)
        gate, up, down = (t.matrix(place) for t in w[:3])
        biases = [t.rows([place]) for t in w[3:]] or [np.zeros(1)] * 3
        rows = tokens[token]
        g, u = np.minimum(rows @ gate.T + biases[0], limit), np.clip(rows @ up.T + biases[1], -limit, limit) + shift
        sigmoid = 1 / (1 + np.exp(-alpha * g))
        hidden = g * sigmoid * u
        # The slope of g sigmoid(alpha g) is at most 1.1 for any alpha, that of a clamp at most 1; adding a bias, or 1,
        # rounds. The two errors come from different weights, so their squares add.
        gate_error = product_bound(gate, rows, a) + _U * np.abs(g)
        up_error = product_bound(up, rows, a) + 2 * _U * (np.abs(u) + shift)
        error = np.hypot(1.1 * gate_error * u, g * sigmoid * up_error)
        error += FUNCTION_ULPS * _U * np.abs(hidden)
        bound = product_bound(down, hidden, a, error) + _U * np.abs(biases[2])
        np.add.at(total, token, np.abs(scores[token, slot])[:, None] * bound)
    return np.asarray(total) + call.problem.integer("top_k") * _U * np.abs(y[0])


def _rms_norm(call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str) -> Array:
    # The mean of squares is a sum of positive terms, its root halves the relative error.
    return np.asarray((SAFETY * math.sqrt(call.problem.integer("d")) / 2 + FUNCTION_ULPS) * _U * np.abs(y[0]))


def _rope(call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str) -> Array:
    # A float32 angle is off by u of itself (twice: the frequency's product), and turns the pair by as much. The pair's
    # length is at most sqrt(2) times the larger of its elements; the bound takes the largest of the vector.
    heads = call.problem.integer("heads")
    largest = np.abs(x[0]).reshape(len(x[0]), heads, -1).max(axis=-1, keepdims=True)
    angle = int(s.positions.max()) + 1
    bound = (2 * angle + FUNCTION_ULPS) * _U * math.sqrt(2) * largest
    growth = max(1.0, float(np.abs(y[0]).max() / max(np.abs(x[0]).max(), 1e-30)))  # YaRN's factor
    return np.asarray(np.broadcast_to(bound * growth, (*largest.shape[:2], x[0].shape[1] // heads)).reshape(x[0].shape))


def _attend(
    q: Array,
    keys: Array,
    values: Array,
    position: int,
    scale: float,
    u: float,
    errors: tuple[Array, Array] | None = None,
    window: int = 0,
    sinks: Array | None = None,
) -> Array:
    """Bound for ``q [heads, tokens, d]``: a score that is off by e changes a weight by the factor exp(2e) at most.

    ``errors``: bounds on the keys and the values themselves, those of different elements independent. ``sinks``
    ``[heads]`` take their part of the weights, and are exact.
    """
    visible = visible_positions(q.shape[1], position, window)
    rows = q.reshape(-1, q.shape[-1])
    scores = np.where(visible, (rows @ keys.T).reshape(*q.shape[:2], -1) * scale, -np.inf)
    sizes = np.where(visible, (np.abs(rows) @ np.abs(keys).T).reshape(scores.shape), 0) * abs(scale)
    score_error = SAFETY * math.sqrt(q.shape[-1]) * _U * sizes.max(axis=-1, keepdims=True)
    low = u > _U  # queries and weights are rounded once each, to a type that keys and values have already
    if low:
        off = np.square(u * rows) + np.square(SUBNORMAL * np.abs(rows).max(axis=-1, keepdims=True))
        off = np.sqrt(off @ np.square(keys).T / 3).reshape(scores.shape) * abs(scale)
        score_error = score_error + SAFETY * np.where(visible, off, 0).max(axis=-1, keepdims=True)
    if errors is not None:
        off = np.sqrt(np.square(rows) @ np.square(errors[0]).T).reshape(scores.shape) * abs(scale)
        score_error = score_error + np.where(visible, off, 0).max(axis=-1, keepdims=True)
    largest = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - largest)
    p /= p.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks[:, None, None] - largest))
    rounding = SAFETY * math.sqrt(len(keys)) * _U + FUNCTION_ULPS * _U
    mean = (p.reshape(-1, p.shape[-1]) @ np.abs(values)).reshape(*q.shape[:2], -1)
    bound = (2 * score_error + rounding) * mean
    if low:
        largest_p = p.max(axis=-1, keepdims=True)
        squares = np.square(u * p) + np.square(np.where(p > 0, SUBNORMAL * largest_p, 0))
        bound += SAFETY * np.sqrt(squares.reshape(-1, p.shape[-1]) @ np.square(values) / 3).reshape(bound.shape)
        bound += u * mean  # the output is rounded too
    if errors is not None:
        bound += np.sqrt(np.square(p.reshape(-1, p.shape[-1])) @ np.square(errors[1])).reshape(bound.shape)
    return np.asarray(bound)


def _attention(
    call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str
) -> Array:
    p, u, window = call.problem, ROUNDOFF.get(a, _U), call.problem.integer("window")
    scale = float(call.attrs.get("scale", 1.0))  # type: ignore[arg-type]
    total = np.empty_like(y[0])
    for sequence, position, rows in s.parts():
        first = position - first_seen(position, window)
        keys, values = _cached(call, s, sequence, position, rows, x[0].dtype)
        if call.op == "mla_attention":
            q = x[0][rows].reshape(-1, p.integer("heads"), keys.shape[-1]).transpose(1, 0, 2)
            bound = _attend(q, keys[0], keys[0][:, : p.integer("kv_lora")], first, scale, u, window=window)
        else:
            d, kv_heads = p.integer("d"), p.integer("kv_heads")
            tokens = rows.stop - rows.start
            q = x[0][rows].reshape(tokens, -1, d).transpose(1, 0, 2).reshape(kv_heads, -1, tokens, d)
            sinks = w[0].vector().reshape(kv_heads, -1) if w else [None] * kv_heads
            bound = np.concatenate(
                [
                    _attend(q[h], keys[h], values[h], first, scale, u, window=window, sinks=sinks[h])
                    for h in range(kv_heads)
                ]
            )
        total[rows] = bound.transpose(1, 0, 2).reshape(len(total[rows]), -1)
    return total


def _cached(
    call: OpCall, s: StepState, sequence: int, position: int, rows: slice, dtype: npt.DTypeLike
) -> tuple[Array, Array]:
    """Keys and values ``[heads, positions, d]`` that a sequence's rows see."""
    cache, end = cache_of(call, s), position + rows.stop - rows.start
    begin = first_seen(position, call.problem.integer("window"))
    keys = decode(cache.kv, cached(cache.k, sequence, begin, end), dtype)
    # Of a latent the values are a part.
    return keys, decode(cache.kv, cached(cache.v, sequence, begin, end), dtype) if cache.v.size else keys


def _mla_decompressed(
    call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str
) -> Array:
    p, window = call.problem, call.problem.integer("window")
    kv_lora, scale = p.integer("kv_lora"), float(call.attrs.get("scale", 1.0))  # type: ignore[arg-type]
    u = ROUNDOFF.get(a, _U)
    total = np.empty_like(y[0])
    for sequence, position, rows in s.parts():
        latent = _cached(call, s, sequence, position, rows, x[0].dtype)[0][0]
        q = x[0][rows].reshape(rows.stop - rows.start, p.integer("heads"), -1).transpose(1, 0, 2)
        c, rotated, first = latent[:, :kv_lora], latent[:, kv_lora:], position - first_seen(position, window)
        bounds = []
        for h, (to_k, to_v) in enumerate(zip(*expansion(call, [weight.stack() for weight in w]), strict=True)):
            keys = np.concatenate([c @ to_k.T, rotated], axis=-1)
            key_error = np.concatenate([product_bound(to_k, c, a), np.zeros_like(rotated)], axis=-1)
            errors = key_error, product_bound(to_v, c, a)
            bounds.append(_attend(q[h : h + 1], keys, c @ to_v.T, first, scale, u, errors, window))
        total[rows] = np.concatenate(bounds).transpose(1, 0, 2).reshape(q.shape[1], -1)
    return total


def _silu_mul(call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str) -> Array:
    return np.asarray(FUNCTION_ULPS * _U * np.abs(y[0]) + 1e-37)  # results below float32's normal range may be 0


def _add(call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str) -> Array:
    # One rounding is at most u; twice that, because ``check`` takes a bound for several deviations.
    return np.asarray(2 * _U * np.abs(y[0]))


def _gated_add(
    call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str
) -> Array:
    # The sigmoid's slope is at most 1/4.
    gate = product_bound(w[0].vector()[None], x[2], "f32") / 4 + FUNCTION_ULPS * _U
    return np.asarray(2 * _U * np.abs(y[0]) + (gate + _U) * np.abs(x[1]))


def _embedding(
    call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str
) -> Array:
    # scale * quant - minimum, fused or not: the two parts are each at most twice the row's largest weight.
    return np.asarray(8 * _U * np.abs(y[0]).max(axis=-1, keepdims=True) + np.zeros_like(y[0]))


def _exact(call: OpCall, w: Sequence[Tensor], x: Sequence[Array], y: Sequence[Array], s: StepState, a: str) -> Array:
    return np.zeros_like(y[0])


def router_bounds(
    call: OpCall, weights: Sequence[Tensor], inputs: Sequence[Array], accuracy: str
) -> tuple[Array, Array, Array]:
    """``(choice, choice bound, relative weight bound)`` ``[tokens, experts]``: an expert may be chosen instead of
    another whose choice score is no further away than both bounds."""
    w = weights[0].matrix()
    logit_error = product_bound(w, inputs[0], accuracy)
    _, bias = router_biases(call, [weight.vector() for weight in weights])
    logits = router_logits(call, weights, inputs[0])
    logit_error = logit_error + _U * np.abs(logits)  # a bias of the logits is added, and that rounds
    scores, choice = choice_scores(logits, call.attrs, bias)
    # A softmax or sigmoid whose logits are off by e is off by the factor exp(2e) at most; renormalising doubles it.
    relative = 4 * logit_error.max(axis=-1, keepdims=True) + FUNCTION_ULPS * _U
    return choice, relative * scores + _U, np.broadcast_to(relative, scores.shape)


Bound = Callable[[OpCall, Sequence[Tensor], Sequence[Array], Sequence[Array], StepState, str], Array]
BOUNDS: dict[str, Bound] = {
    "embedding": _embedding, "rms_norm": _rms_norm, "linear": _linear, "head_linear": _head_linear, "rope": _rope,
    "attention": _attention, "mla_attention": _attention, "mla_decompressed": _mla_decompressed,
    "silu_mul": _silu_mul, "add": _add, "gated_add": _gated_add, "moe_experts": _moe_experts,
    "take_last": _exact, "top_logits": _exact, "expert_map": _exact,
    "transfer": _exact,
}  # fmt: skip


def bounds(
    call: OpCall,
    weights: Sequence[Tensor],
    inputs: Sequence[Array],
    truth: Sequence[Array],
    state: StepState,
    accuracy: str,
) -> Array:
    """Allowed ``|output - truth|`` per element of the first output; everything in float64.

    The router's ids are not numbers with an error: see ``router_bounds``.
    """
    assert call.op in FUNCTIONS
    return BOUNDS[call.op](call, weights, inputs, truth, state, accuracy)
