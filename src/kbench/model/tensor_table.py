"""Every tensor that a model of given shapes has: the recipe that files are checked against and synthetic ones follow.

Shapes are in GGUF order, the row length (input width) first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .architectures import architecture
from .descriptor import ModelDescriptor
from .tensor_kind import tensor_kind


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name and shape; ``optional`` ones need not be there."""

    name: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def kind(self) -> str:
        return tensor_kind(self.name)


def tensor_table(
    descriptor: ModelDescriptor, *, split_kv_b: bool = False, split_qkvz: bool = False
) -> Iterator[TensorSpec]:
    """All tensors of ``descriptor`` in the order of the model; its own ``tensors`` are not looked at.

    ``split_qkvz``: files made since 2026 hold linear attention's input matrix as two tensors.
    ``split_kv_b``: files made since April 2025 hold MLA's ``kv_b`` as two tensors, ``k_b`` (transposed) and ``v_b``.
    """
    m = descriptor
    yield TensorSpec("token_embd.weight", (m.d, m.vocab))
    yield TensorSpec("output_norm.weight", (m.d,))
    if not m.tied:
        yield TensorSpec("output.weight", (m.d, m.vocab))
    if m.mla is None:
        yield TensorSpec("rope_freqs.weight", (m.rotated // 2,), optional=True)
    for layer in range(m.n_layers):
        for name, shape in _layer(m, layer, split_kv_b, split_qkvz):
            yield TensorSpec(f"blk.{layer}.{name}", shape)


def draft_table(descriptor: ModelDescriptor) -> Iterator[TensorSpec]:
    """Tensors of the layers behind the last one that draft tokens: each a layer with an embedding and a head."""
    m = descriptor
    for layer in range(m.n_layers, m.n_layers + m.draft_layers):
        for name, shape in (*_layer(m, layer, False, False), *_drafting(m)):
            yield TensorSpec(f"blk.{layer}.{name}", shape)


_Rows = Iterator[tuple[str, tuple[int, ...]]]


def _layer(m: ModelDescriptor, layer: int, split_kv_b: bool, split_qkvz: bool) -> _Rows:
    if not m.attends(layer):
        yield from _delta(m, split_qkvz)
    else:
        yield from _mla(m, split_kv_b) if m.mla is not None else _attention(m)
    yield from _moe(m) if m.has_experts(layer) else _mlp(m)


def _drafting(m: ModelDescriptor) -> _Rows:
    yield "nextn.eh_proj.weight", (2 * m.d, m.d)
    yield "nextn.embed_tokens.weight", (m.d, m.vocab)
    yield "nextn.shared_head_head.weight", (m.d, m.vocab)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        yield f"nextn.{norm}.weight", (m.d,)


def _attention(m: ModelDescriptor) -> _Rows:
    widths = {"q": m.heads * m.head_dim, "k": m.kv_heads * m.head_dim, "v": m.kv_heads * m.head_dim}
    yield "attn_norm.weight", (m.d,)
    for letter, width in widths.items():
        # Where a token weighs its attention's output, the gate comes out of the matrix of queries.
        yield f"attn_{letter}.weight", (m.d, 2 * width if letter == "q" and m.delta is not None else width)
        if m.attention_bias:
            yield f"attn_{letter}.bias", (width,)
        if m.qk_norm and letter != "v":
            yield f"attn_{letter}_norm.weight", (m.head_dim,)
    entry = architecture(m.architecture)
    yield "attn_output.weight", (m.heads * m.head_dim, m.d)
    if entry.mlp_bias:
        yield "attn_output.bias", (m.d,)
    if entry.sinks:
        yield "attn_sinks.weight", (m.heads,)


def _delta(m: ModelDescriptor, split_qkvz: bool) -> _Rows:
    a = m.delta
    assert a is not None
    yield "attn_norm.weight", (m.d,)
    if split_qkvz:
        yield "attn_qkv.weight", (m.d, a.convolved)
        yield "attn_gate.weight", (m.d, a.values)
    else:
        yield "ssm_in.weight", (m.d, a.convolved + a.values)
    yield "ssm_ba.weight", (m.d, 2 * a.value_heads)
    yield "ssm_conv1d.weight", (a.conv, a.convolved)
    yield "ssm_dt.bias", (a.value_heads,)
    yield "ssm_a", (a.value_heads,)
    yield "ssm_norm.weight", (a.value_dim,)
    yield "ssm_out.weight", (a.values, m.d)


def _mla(m: ModelDescriptor, split_kv_b: bool) -> _Rows:
    a = m.mla
    assert a is not None
    yield "attn_norm.weight", (m.d,)
    if a.q_lora:
        yield "attn_q_a.weight", (m.d, a.q_lora)
        yield "attn_q_a_norm.weight", (a.q_lora,)
        yield "attn_q_b.weight", (a.q_lora, m.heads * (a.nope + a.rope))
    else:
        yield "attn_q.weight", (m.d, m.heads * (a.nope + a.rope))
    yield "attn_kv_a_mqa.weight", (m.d, a.kv_lora + a.rope)
    yield "attn_kv_a_norm.weight", (a.kv_lora,)
    if split_kv_b:
        yield "attn_k_b.weight", (a.nope, a.kv_lora, m.heads)
        yield "attn_v_b.weight", (a.kv_lora, a.v, m.heads)
    else:
        yield "attn_kv_b.weight", (a.kv_lora, m.heads * (a.nope + a.v))
    yield "attn_output.weight", (m.heads * a.v, m.d)


def _mlp(m: ModelDescriptor) -> _Rows:
    yield f"{architecture(m.architecture).ffn_norm}.weight", (m.d,)
    yield "ffn_gate.weight", (m.d, m.ffn)
    yield "ffn_up.weight", (m.d, m.ffn)
    yield "ffn_down.weight", (m.ffn, m.d)


def _moe(m: ModelDescriptor) -> _Rows:
    e = m.moe
    assert e is not None
    yield f"{architecture(m.architecture).ffn_norm}.weight", (m.d,)
    yield "ffn_gate_inp.weight", (m.d, e.experts)
    biased = architecture(m.architecture).mlp_bias
    if biased:
        yield "ffn_gate_inp.bias", (e.experts,)
    if e.scoring == "sigmoid":
        yield "exp_probs_b.bias", (e.experts,)
    for part, (k, n) in {"gate": (m.d, e.n), "up": (m.d, e.n), "down": (e.n, m.d)}.items():
        yield f"ffn_{part}_exps.weight", (k, n, e.experts)
        if biased:
            yield f"ffn_{part}_exps.bias", (n, e.experts)
    if e.shared:
        yield "ffn_gate_shexp.weight", (m.d, e.shared_width)
        yield "ffn_up_shexp.weight", (m.d, e.shared_width)
        yield "ffn_down_shexp.weight", (e.shared_width, m.d)
    if e.shared_gate:
        yield "ffn_gate_inp_shexp.weight", (m.d,)
