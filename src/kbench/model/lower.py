"""A descriptor under an assignment becomes a flat list of calls: what the planner prices and the engine runs."""

from __future__ import annotations

import math

from kbench.core import AUTO, Assignment, Device, OpCall, Phase, Problem, UserError, Value, check_kv

from .architectures import architecture
from .deferral import deferred
from .descriptor import ModelDescriptor
from .draft import Draft, Resolve
from .injection import inject, refused_operators
from .lower_deepseek2 import lower_mla
from .lower_delta import gate_attention, lower_delta
from .lower_moe import lower_moe
from .transfers import insert_transfers


def lower(
    descriptor: ModelDescriptor,
    assignment: Assignment,
    phase: Phase,
    tokens: int,
    context: int,
    *,
    kv: str = "f16",
    logits: str = "last",
    deliver: Device | None = None,
    ring: bool = False,
    defer_experts: bool = False,
    resolve: Resolve,
) -> tuple[OpCall, ...]:
    """The calls of one step, in order.

    Args:
        tokens: new tokens in this call; in decode, sequences in the batch.
        context: cached tokens at the end of the call, the new ones included.
        kv: type of the cache: ``f16``, ``bf16``, ``q8_0`` or ``f32``.
        logits: ``last`` makes them for the last prompt token only, ``all`` for every token; a decode batch has them
            for all its sequences. They are the value ``logits``, float32 ``[rows, vocab]``, of the last call but
            for a transfer.
        deliver: the device where the logits are wanted, whatever makes them; None: where they were made.
        ring: tokens go on after ``context``, and each sees the last ``context`` only.
        defer_experts: what the CPU's routed experts make is added one layer later (see ``deferral``): not exact.
        resolve: names the implementation for a problem on a device where the assignment leaves it open.

    Raises:
        UserError: tokens, context, kv or logits make no sense; a cache type that the model's vectors do not fit; a
            module that somebody's own operator cannot replace.
    """
    draft = _drafted(descriptor, assignment, phase, tokens, context, kv, logits, resolve, ring)
    inject(draft)
    if defer_experts:
        draft.calls = deferred(draft.calls)
    return insert_transfers(draft, {} if deliver is None else {"logits": deliver})


def operator_errors(descriptor: ModelDescriptor, assignment: Assignment) -> list[UserError]:
    """One for each module (``where``) that somebody's own operator is to replace and cannot."""
    found: dict[str, UserError] = {}
    for phase, tokens in ((Phase.DECODE, 1), (Phase.PREFILL, 256)):
        draft = _drafted(descriptor, assignment, phase, tokens, 1024, "f32", "last", lambda *_: AUTO)
        found = {error.where: error for error in refused_operators(draft)} | found
    return list(found.values())


def _drafted(
    descriptor: ModelDescriptor,
    assignment: Assignment,
    phase: Phase,
    tokens: int,
    context: int,
    kv: str,
    logits: str,
    resolve: Resolve,
    ring: bool = False,
) -> Draft:
    """The calls before somebody's own operators replace any."""
    # A decode batch has its tokens in as many contexts.
    if tokens < 1 or context < (tokens if phase is Phase.PREFILL else 1):
        raise UserError(f"{tokens} new tokens in a context of {context}", accepted="1 <= tokens <= context")
    check_kv(kv, *descriptor.cached_widths, where="kv")
    if logits not in ("last", "all"):
        raise UserError(f"logits {logits!r}", accepted="last, all")
    draft = Draft(descriptor, assignment, phase, tokens, context, kv, resolve, ring)
    m = descriptor
    embedding = draft.tensor("token_embd.weight")
    problem = Problem.make("embedding", quant=embedding.quant, vocab=m.vocab, d=m.d, tokens=tokens)
    hidden = Value("model.embed_tokens", m.d)
    x = draft.emit(problem, "model.embed_tokens", ("$tokens",), (hidden,), (embedding.name,))
    for index in range(m.n_layers):
        x = _layer(draft, index, x)
    one = logits == "last" and not (phase is Phase.DECODE and tokens > 1)
    if one:
        problem = Problem.make("take_last", d=m.d, tokens=tokens)
        x = draft.emit(problem, "model.norm", (x,), (Value("model.norm.last", m.d, "one"),))
    x = draft.rms_norm("model.norm", x, "output_norm", one=one)
    draft.linear("lm_head", x, "token_embd" if m.tied else "output", one=one, out="logits")
    return draft


def _layer(draft: Draft, index: int, x: str) -> str:
    layer, block = f"model.layers.{index}", f"blk.{index}"
    normed = draft.rms_norm(f"{layer}.input_layernorm", x, f"{block}.attn_norm")
    attend = lower_mla if draft.model.mla is not None else _attention if draft.model.attends(index) else lower_delta
    x = draft.add(layer, x, attend(draft, index, normed), f"{layer}.attended")
    normed = draft.rms_norm(
        f"{layer}.post_attention_layernorm", x, f"{block}.{architecture(draft.model.architecture).ffn_norm}"
    )
    if draft.model.has_experts(index):
        y = lower_moe(draft, index, normed)
    else:
        y = draft.mlp(f"{layer}.mlp", normed, f"{block}.ffn_{{}}")
    return draft.add(layer, x, y, layer)


def _attention(draft: Draft, index: int, x: str) -> str:
    m, module, block = draft.model, f"model.layers.{index}.self_attn", f"blk.{index}"
    heads = {"q": m.heads, "k": m.kv_heads, "v": m.kv_heads}
    made = {letter: draft.linear(f"{module}.{letter}_proj", x, f"{block}.attn_{letter}") for letter in heads}
    queries = made["q"]
    if m.qk_norm:
        for letter in "qk":
            made[letter] = draft.rms_norm(
                f"{module}.{letter}_norm", made[letter], f"{block}.attn_{letter}_norm", rows=heads[letter]
            )
    for letter in "qk":
        out = f"{module}.{letter}"
        made[letter] = draft.rope(module, made[letter], out, heads=heads[letter], d=m.rotated, head_dim=m.head_dim)
    problem = Problem.make(
        "attention",
        heads=m.heads,
        kv_heads=m.kv_heads,
        d=m.head_dim,
        kv=draft.kv,
        tokens=draft.tokens,
        context=draft.context,
        window=draft.window(index),
    )
    attended = draft.emit(
        problem,
        module,
        (made["q"], made["k"], made["v"]),
        (Value(module, m.heads * m.head_dim),),
        draft.present(f"{block}.attn_sinks.weight"),
        {"layer": index, "scale": 1 / math.sqrt(m.head_dim)},
    )
    if m.delta is not None:
        attended = gate_attention(draft, index, attended, queries)
    return draft.linear(f"{module}.o_proj", attended, f"{block}.attn_output")
