"""What an operation costs in principle: FLOPs, bytes touched, elements resident, and the two intensities.

``ai_touched`` = FLOPs / bytes read or written: the roofline's x axis.
``ai_resident`` = FLOPs / elements stored: what ranks modules for scarce memory. KTransformers' "MLA 512" and
"MoE 0.075" are of the second kind: 128 heads x 2 products x 2 FLOPs per cached latent element (483.6 when the
elements that carry positions count), and 2 x 6/160 FLOPs per stored expert weight.

Byte accounting: weights once per call in their stored type; activations in float32, read and written once; the
cache read once for all its tokens and written for the new ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from .kv import kv_bytes
from .op import INJECTED, Problem
from .quant import quant

_F32 = 4


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs, bytes and elements of one call. Resident are weights, or the cache for attention."""

    flops: float
    weight_bytes: float  # of the weights touched
    cache_bytes: float  # of the cache read and written
    activation_bytes: float
    elements_resident: int
    resident_bytes: float

    @property
    def bytes_touched(self) -> float:
        return self.weight_bytes + self.cache_bytes + self.activation_bytes

    @property
    def ai_touched(self) -> float:
        return self.flops / self.bytes_touched if self.bytes_touched else 0.0

    @property
    def ai_resident(self) -> float:
        return self.flops / self.elements_resident if self.elements_resident else 0.0


def expected_experts(experts: int, top_k: int, tokens: int) -> float:
    """Distinct experts that ``tokens`` touch when routing is uniform: E (1 - (1 - k/E)^B).
    Of a part with fewer than ``top_k``: all of it."""
    return experts * (1 - (1 - min(1.0, top_k / experts)) ** tokens)


def _matrix_bytes(type_name: str, n: int, k: int) -> int:
    return quant(type_name).row_bytes(k) * n


def _attended(tokens: int, context: int, window: int = 0) -> float:
    """Pairs (query, key) under the causal mask when the last ``tokens`` of ``context`` are the queries, and each sees
    the last ``window`` positions where that is not 0."""
    if not window or window >= context:
        return tokens * context - tokens * (tokens - 1) / 2
    first = context - tokens + 1  # positions that the first of them sees but for the window
    growing = max(0, min(tokens, window - first))
    return growing * first + growing * (growing - 1) / 2 + (tokens - growing) * window


def _seen(p: Problem) -> int:
    """Cached positions that any of the call's tokens sees."""
    context, window = p.integer("context"), p.integer("window")
    return min(context, window + p.integer("tokens") - 1) if window else context


def work(problem: Problem) -> Work:
    """The work of one call of ``problem``."""
    p, op = problem, problem.op
    tokens = p.integer("tokens")
    if op in ("linear", "head_linear"):
        heads = p.integer("heads") if op == "head_linear" else 1
        n, k = p.integer("n"), p.integer("k")
        w = heads * _matrix_bytes(p.text("quant"), n, k)
        return Work(2.0 * heads * n * k * tokens, w, 0, _F32 * tokens * heads * (n + k), heads * n * k, w)
    if op == "moe_router":
        n, k = p.integer("experts"), p.integer("k")
        w = _matrix_bytes(p.text("quant"), n, k)
        return Work(2.0 * n * k * tokens, w, 0, _F32 * tokens * (k + 2 * p.integer("top_k")), n * k, w)
    if op == "moe_experts":
        n, k, top_k, experts = (p.integer(name) for name in ("n", "k", "top_k", "experts"))
        one = _matrix_bytes(p.text("quant_gate"), n, k) + _matrix_bytes(p.text("quant_up"), n, k)
        one += _matrix_bytes(p.text("quant_down"), k, n)
        touched = expected_experts(experts, top_k, tokens)
        flops = 2.0 * 3 * n * k * top_k * tokens
        return Work(flops, one * touched, 0, _F32 * tokens * 2 * k, 3 * n * k * experts, one * experts)
    if op == "embedding":
        w = quant(p.text("quant")).row_bytes(p.integer("d"))
        d, vocab = p.integer("d"), p.integer("vocab")
        return Work(0.0, w * tokens, 0, _F32 * tokens * d, d * vocab, w * vocab)
    if op in ("attention", "mla_attention"):
        context, heads = p.integer("context"), p.integer("heads")
        window, seen = p.integer("window"), _seen(p)
        if op == "attention":
            per_key = per_value = p.integer("d")
            stored = 2 * p.integer("kv_heads") * per_key
            token_bytes = 2 * p.integer("kv_heads") * kv_bytes(p.text("kv"), per_key)
        else:
            per_value = p.integer("kv_lora")
            per_key = stored = per_value + p.integer("rope")
            token_bytes = kv_bytes(p.text("kv"), per_value, p.integer("rope"))
        flops = 2.0 * heads * (per_key + per_value) * _attended(tokens, context, window)
        activations = _F32 * tokens * heads * (per_key + per_value)
        return Work(flops, 0, token_bytes * (seen + tokens), activations, stored * seen, token_bytes * seen)
    if op == "mla_decompressed":
        context, heads, kv_lora, rope = (p.integer(name) for name in ("context", "heads", "kv_lora", "rope"))
        nope, v = p.integer("nope"), p.integer("v")
        w = heads * (_matrix_bytes(p.text("quant_k"), nope, kv_lora) + _matrix_bytes(p.text("quant_v"), v, kv_lora))
        seen, pairs = _seen(p), _attended(tokens, context, p.integer("window"))
        flops = 2.0 * heads * (kv_lora * (nope + v) * seen + (nope + rope + v) * pairs)
        token_bytes = kv_bytes(p.text("kv"), kv_lora, rope)
        activations = _F32 * tokens * heads * (nope + rope + v)
        cached = token_bytes * (seen + tokens)
        return Work(flops, w, cached, activations, (kv_lora + rope) * seen, token_bytes * seen)
    if op == "top_logits":
        return Work(0.0, 0, 0, _F32 * tokens * (p.integer("vocab") + 2 * p.integer("top_k")), 0, 0)
    if op == "expert_map":
        return Work(0.0, 0, 0, _F32 * tokens * 4 * p.integer("top_k"), 0, 0)
    if op == INJECTED:  # nobody knows what it does between reading and writing
        return Work(0.0, 0, 0, _F32 * tokens * (p.integer("k") + p.integer("n")), 0, 0)
    if op == "delta_rule":
        keys = p.integer("key_heads") * p.integer("key_dim")
        values = p.integer("value_heads") * p.integer("value_dim")
        state = values * p.integer("key_dim")
        convolved = 2 * keys + values
        stored = state + (p.integer("conv") - 1) * convolved
        # Per element of the state: decay 1, read by k 2, correct 2, read by q 2; the convolution's products and sums.
        flops = (7.0 * state + 2.0 * p.integer("conv") * convolved) * tokens
        activations = _F32 * tokens * (2 * convolved + values)
        return Work(flops, 0, 2 * _F32 * stored, activations, stored, _F32 * stored)
    if op == "transfer":
        return Work(0.0, 0, 0, _F32 * tokens * p.integer("d"), 0, 0)
    # elementwise: (FLOPs, reads and writes) per element
    flops_per, streams = {
        "rms_norm": (4, 2),
        "rope": (3, 2),
        "silu_mul": (5, 3),
        "add": (1, 3),
        "gated_add": (4, 4),
        "sigmoid_mul": (5, 3),
        "take_last": (0, 0),
    }[op]
    width = p.integer("n") if p.has("n") else p.integer("d")
    rows = p.integer("rows") if p.has("rows") else p.integer("heads") if p.has("heads") else 1
    elements = width * rows * tokens
    return Work(float(flops_per * elements), 0, 0, _F32 * streams * elements, 0, 0)
