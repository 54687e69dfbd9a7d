"""What a layer of DeepSeek-V2 and V3 has of its own: latent attention."""

from __future__ import annotations

import math

from kbench.core import Phase, Placement, Problem, Value, quant

from .descriptor import Mla
from .draft import Draft

# k_b is used transposed, so a row-quantized kv_b cannot be read in place for it: it is stored anew, once, at load. In
# Q8_0 that costs 4e-3 of the scores, forty times what activations in two int8 planes cost, and a token in seventy goes
# to other experts for it; float16 costs 1e-4, and 2 % of the bytes that a token of V2-Lite reads.
ABSORBED_QUANT = "F16"


def absorbing_is_faster(mla: Mla, tokens: int, context: int) -> bool:
    """Whether ``tokens`` attend to ``context`` in the latent space with fewer multiplications than to keys and values.

    Per head, absorbed: every token is carried into the latent space and out of it, and pairs meet in ``2 kv_lora +
    rope`` products. Decompressed: every cached token is multiplied out, and pairs meet in ``nope + rope + v``. Native
    kernels do both kinds of products at about one rate, so products are all that is compared. DeepSeek's shapes are
    better off decompressed from about 170 tokens on at any context, and where most of the context is new.
    """
    pairs = tokens * context - tokens * (tokens - 1) // 2
    carried = mla.kv_lora * (mla.nope + mla.v)
    absorbed = tokens * carried + pairs * (2 * mla.kv_lora + mla.rope)
    return absorbed <= context * carried + pairs * (mla.nope + mla.rope + mla.v)


def absorbs(draft: Draft, index: int) -> bool:
    """Decode always does. Prefill as the rules say, else as is faster; the cache holds latents either way."""
    assert draft.model.mla is not None
    if draft.phase is Phase.DECODE:
        return True
    chosen = draft.assignment.get(f"model.layers.{index}.self_attn", Placement()).absorb_for_prefill
    return absorbing_is_faster(draft.model.mla, draft.tokens, draft.context) if chosen is None else chosen


def lower_mla(draft: Draft, index: int, x: str) -> str:
    """Attention over the cached latent, in one of two ways.

    Absorbed, nothing is ever expanded to heads: scores are ``q_nope . (W_k c) = (W_k^T q_nope) . c``, so each head's
    query is carried into the latent space, and the weighted latent out of it again. Decompressed, the latents are
    multiplied out to keys and values within one call. Widths: q ``heads x (nope + rope)``, absorbed q ``heads x
    (kv_lora + rope)``, latent ``kv_lora + rope``.
    """
    m, module, block = draft.model, f"model.layers.{index}.self_attn", f"blk.{index}"
    a = m.mla
    assert a is not None
    if a.q_lora:
        q = draft.linear(f"{module}.q_a_proj", x, f"{block}.attn_q_a")
        q = draft.rms_norm(f"{module}.q_a_layernorm", q, f"{block}.attn_q_a_norm")
        q = draft.linear(f"{module}.q_b_proj", q, f"{block}.attn_q_b")
    else:
        q = draft.linear(f"{module}.q_proj", x, f"{block}.attn_q")
    latent = draft.linear(f"{module}.kv_a_proj_with_mqa", x, f"{block}.attn_kv_a_mqa")
    # Normalises the first kv_lora of the latent's elements and passes on the rope elements behind them.
    width = a.kv_lora + a.rope
    latent = draft.emit(
        Problem.make("rms_norm", d=a.kv_lora, rows=1, tokens=draft.tokens),
        f"{module}.kv_a_layernorm",
        (latent,),
        (Value(f"{module}.kv_a_layernorm", width),),
        (f"{block}.attn_kv_a_norm.weight",),
        {"eps": m.rms_eps, "row_width": width},
    )
    q = draft.rope(module, q, f"{module}.q", heads=m.heads, d=a.rope, head_dim=a.nope + a.rope)
    latent = draft.rope(module, latent, f"{module}.latent", heads=1, d=a.rope, head_dim=width)
    if not absorbs(draft, index):
        return draft.linear(f"{module}.o_proj", _decompressed(draft, index, q, latent), f"{block}.attn_output")
    q = _absorb(draft, index, q, "k")
    attended = draft.emit(
        Problem.make(
            "mla_attention",
            heads=m.heads,
            kv_lora=a.kv_lora,
            rope=a.rope,
            kv=draft.kv,
            tokens=draft.tokens,
            context=draft.context,
            window=draft.window(index),
        ),
        module,
        (q, latent),
        (Value(module, m.heads * a.kv_lora),),
        attrs={"layer": index, "scale": mla_scale(draft)},
    )
    return draft.linear(f"{module}.o_proj", _absorb(draft, index, attended, "v"), f"{block}.attn_output")


def mla_scale(draft: Draft) -> float:
    """``1 / sqrt(nope + rope)``, times the square of YaRN's attention temperature ``1 + 0.1 mscale ln(factor)``."""
    a, rope = draft.model.mla, draft.model.rope
    assert a is not None
    scale = 1 / math.sqrt(a.nope + a.rope)
    factor = float(str(rope.get("factor", 1.0)))
    if rope.get("scaling") != "yarn" or factor <= 1:
        return scale
    return scale * float(0.1 * float(str(rope.get("mscale_all_dim", 0.0))) * math.log(factor) + 1.0) ** 2


def _absorb(draft: Draft, index: int, x: str, half: str) -> str:
    """``half`` k: ``nope -> kv_lora`` per head, the head's rope elements passed on behind; v: ``kv_lora -> v``.

    Attribute ``half`` says which half of ``kv_b`` (per head: nope rows of k, then v rows of v) the matrix is.
    """
    m, module, block = draft.model, f"model.layers.{index}.self_attn.kv_b_proj", f"blk.{index}"
    a = m.mla
    assert a is not None
    split, whole = f"{block}.attn_{half}_b.weight", f"{block}.attn_kv_b.weight"
    weight = draft.tensor(split if draft.has(split) else whole)
    n, k, tail = (a.kv_lora, a.nope, a.rope) if half == "k" else (a.v, a.kv_lora, 0)
    type_name = weight.quant
    if weight.name == whole and half == "k" and not quant(type_name).is_float:
        type_name = ABSORBED_QUANT
    problem = Problem.make("head_linear", quant=type_name, heads=m.heads, n=n, k=k, tokens=draft.tokens)
    value = Value(f"{module}.{half}", m.heads * (n + tail))
    return draft.emit(problem, module, (x,), (value,), (weight.name,), {"half": half, "tail": tail})


def _decompressed(draft: Draft, index: int, q: str, latent: str) -> str:
    """Attention on keys and values that ``kv_b`` makes of the latents: as it is stored in one piece, of ``k_b`` turned
    (the other way round than for absorbing)."""
    m, module, block = draft.model, f"model.layers.{index}.self_attn", f"blk.{index}"
    a = m.mla
    assert a is not None
    split = draft.has(f"{block}.attn_k_b.weight")
    names = (f"{block}.attn_k_b.weight", f"{block}.attn_v_b.weight") if split else (f"{block}.attn_kv_b.weight",)
    types = [draft.tensor(name).quant for name in names]
    if split and not quant(types[0]).is_float:
        types[0] = ABSORBED_QUANT
    problem = Problem.make(
        "mla_decompressed",
        quant_k=types[0],
        quant_v=types[-1],
        heads=m.heads,
        kv_lora=a.kv_lora,
        rope=a.rope,
        nope=a.nope,
        v=a.v,
        kv=draft.kv,
        tokens=draft.tokens,
        context=draft.context,
        window=draft.window(index),
    )
    attrs = {"layer": index, "scale": mla_scale(draft)}
    return draft.emit(problem, module, (q, latent), (Value(module, m.heads * a.v),), names, attrs)
