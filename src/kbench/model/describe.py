"""A GGUF's metadata and tensor table become a descriptor; whatever contradicts itself is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

from gguf.constants import LlamaFileType

from kbench.core import Attribute, CorruptFile, Unsupported, UserError

from .architectures import ARCHITECTURES, Architecture, architecture
from .checked_tensors import checked_tensors
from .descriptor import Delta, Mla, ModelDescriptor, Moe
from .gguf_file import GgufFile
from .gguf_parts import model_stem
from .metadata import Metadata

# Files of the first such model do not say which layers attend in full: every fourth does.
_INTERVAL = 4

# YaRN's mscale is stored as the slope of its logarithm: 0.1 x mscale_all_dim.
YARN_LOG_SLOPE = 0.1


def describe_gguf(gguf: GgufFile, faults: list[UserError] | None = None) -> ModelDescriptor:
    """The descriptor of an open file.

    Args:
        faults: tensors that are missing, or of another shape, or not known, go there, and the descriptor has them as
            they should be; None: they are raised.

    Raises:
        Unsupported: an architecture or a variant that is not known.
        CorruptFile: metadata that is missing, of a wrong type, or in contradiction to the tensors.
    """
    entry = architecture(gguf.architecture, f"{gguf.path}: general.architecture")
    meta = Metadata(gguf)
    draft = _mla_model(meta, entry, gguf) if entry.mla else _dense_model(meta, entry, gguf)
    return dataclasses.replace(draft, tensors=checked_tensors(draft, gguf, _draft_layers(meta), faults))


def _dense_model(meta: Metadata, entry: Architecture, gguf: GgufFile) -> ModelDescriptor:
    d, heads = meta.integer("embedding_length"), meta.integer("attention.head_count")
    kv_heads = meta.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        meta.fail("attention.head_count_kv", f"found {kv_heads}", f"a divisor of the {heads} heads")
    if not meta.has("attention.key_length") and d % heads:
        meta.fail("attention.head_count", f"{heads} heads do not divide a width of {d}")
    head_dim = meta.integer("attention.key_length", d // heads)
    if meta.integer("attention.value_length", head_dim) != head_dim:
        meta.fail("attention.value_length", "differs from the key length", str(head_dim))
    rotary = meta.integer("rope.dimension_count", head_dim)
    if rotary > head_dim or rotary % 2 or (rotary < head_dim and not entry.partial_rope):
        meta.fail("rope.dimension_count", "rotates a part of the head", f"all {head_dim} elements, an even number")
    bias, norm = entry.attention_bias, entry.qk_norm
    window = meta.integer("attention.sliding_window") if entry.full_every else 0
    return ModelDescriptor(
        **_common(meta, gguf),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=meta.integer("feed_forward_length"),
        rope=_rope(meta, entry, head_dim, gguf),
        rotary=rotary if rotary < head_dim else 0,
        window=window,
        full_every=entry.full_every,
        qk_norm="blk.0.attn_q_norm.weight" in gguf.tensors if norm is None else norm,
        attention_bias="blk.0.attn_q.bias" in gguf.tensors if bias is None else bias,
        delta=_delta(meta) if entry.linear_attention else None,
        moe=_moe(meta, entry, gguf),
    )


def _delta(meta: Metadata) -> Delta:
    heads, values = meta.integer("ssm.time_step_rank"), meta.integer("ssm.inner_size")
    if values % heads:
        meta.fail("ssm.inner_size", f"{heads} heads do not divide a width of {values}")
    return Delta(
        key_heads=meta.integer("ssm.group_count"),
        key_dim=meta.integer("ssm.state_size"),
        value_heads=heads,
        value_dim=values // heads,
        conv=meta.integer("ssm.conv_kernel"),
        interval=meta.integer("full_attention_interval", _INTERVAL),
    )


def _mla_model(meta: Metadata, entry: Architecture, gguf: GgufFile) -> ModelDescriptor:
    heads, rope = meta.integer("attention.head_count"), meta.integer("rope.dimension_count")
    # Files made before April 2025 describe MLA as ordinary heads; since then key_length is the latent's.
    suffix = "_mla" if meta.has("attention.key_length_mla") else ""
    head_dim = meta.integer(f"attention.key_length{suffix}")
    if head_dim <= rope or rope % 2:
        meta.fail("rope.dimension_count", f"found {rope}", f"an even part of the head of {head_dim}")
    mla = Mla(
        q_lora=meta.integer("attention.q_lora_rank", 0, least=0),
        kv_lora=meta.integer("attention.kv_lora_rank"),
        rope=rope,
        nope=head_dim - rope,
        v=meta.integer(f"attention.value_length{suffix}"),
    )
    return ModelDescriptor(
        **_common(meta, gguf),
        heads=heads,
        kv_heads=1,  # all heads share the latent
        head_dim=head_dim,
        ffn=meta.integer("feed_forward_length"),
        rope=_rope(meta, entry, head_dim, gguf),
        mla=mla,
        moe=_moe(meta, entry, gguf),
    )


def _moe(meta: Metadata, entry: Architecture, gguf: GgufFile) -> Moe | None:
    experts = meta.integer("expert_count", 0, least=0)
    if not experts and entry.experts:
        meta.fail("expert_count", f"an architecture of experts with {experts}", "at least 1")
    if not experts:
        return None
    if entry.experts is False:
        raise Unsupported(
            f"a mixture-of-experts model of architecture {entry.name!r}",
            where=str(gguf.path),
            accepted=", ".join(name for name, known in ARCHITECTURES.items() if known.experts is not False),
        )
    top_k = meta.top_k("expert_used_count", experts)
    n_group, topk_group = meta.groups("expert_group_count", "expert_group_used_count", experts, top_k)
    gating = meta.integer("expert_gating_func", 2 if entry.scoring == "sigmoid" else 1)
    if gating not in (1, 2, 3):
        meta.fail("expert_gating_func", f"found {gating}", "1 (softmax), 2 (sigmoid), 3 (softmax of the chosen)")
    first_dense = meta.integer("leading_dense_block_count", 0, least=0)

    def width(key: str, part: str) -> int:
        """Files of 2024 leave it to the tensors, which are checked against it like all others."""
        tensor = gguf.tensors.get(f"blk.{first_dense}.ffn_gate_{part}.weight")
        rows = tensor.info.shape[1] if tensor is not None and len(tensor.info.shape) > 1 else None
        return meta.integer(key, rows)

    return Moe(
        experts=experts,
        top_k=top_k,
        n=width("expert_feed_forward_length", "exps"),
        shared=1 if entry.shared_gate else meta.integer("expert_shared_count", 0, least=0),
        shared_n=width("expert_shared_feed_forward_length", "shexp") if entry.shared_gate else 0,
        shared_gate=entry.shared_gate,
        first_dense=first_dense,
        scoring="sigmoid" if gating == 2 else "softmax",
        n_group=n_group,
        topk_group=topk_group,
        # The softmax of the chosen experts' logits is the softmax of all, renormalised.
        norm_topk_prob=gating == 3 or meta.flag("expert_weights_norm", entry.norm_topk_prob),
        routed_scaling=meta.number("expert_weights_scale", 1.0),
    )


def _common(meta: Metadata, gguf: GgufFile) -> dict[str, Any]:
    name = gguf.metadata.get("general.name")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.info.shape) != 2:
        raise CorruptFile("no matrix token_embd.weight", where=f"{gguf.path}: token_embd.weight")
    vocab = meta.integer("vocab_size", embedding.info.shape[1])
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != vocab:
        meta.fail("vocab_size", f"{vocab} rows of token_embd.weight, {len(tokens)} tokenizer.ggml.tokens", "the same")
    return {
        # Shown on terminals: nothing that a terminal would obey.
        "name": "".join(c for c in name if c.isprintable())
        if isinstance(name, str) and name
        else model_stem(gguf.path),
        "architecture": gguf.architecture,
        "quant": quant_label(gguf),
        "n_layers": meta.integer("block_count") - _draft_layers(meta),
        "d": meta.integer("embedding_length"),
        "vocab": vocab,
        "rms_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "context_length": meta.integer("context_length"),
        "tied": "output.weight" not in gguf.tensors,
    }


def _draft_layers(meta: Metadata) -> int:
    """Layers at the end that draft tokens for speculative decoding; without that nothing reads them."""
    count = meta.integer("nextn_predict_layers", 0, least=0)
    if count >= meta.integer("block_count"):
        meta.fail("nextn_predict_layers", f"found {count}", "fewer than block_count")
    return count


def _rope(meta: Metadata, entry: Architecture, head_dim: int, gguf: GgufFile) -> dict[str, Attribute]:
    scaling = meta.text("rope.scaling.type", "none")
    factor = meta.number("rope.scaling.factor", 1.0)
    if scaling == "none" and meta.has("rope.scale_linear"):  # how files of 2023 said it
        scaling, factor = "linear", meta.number("rope.scale_linear")
    if scaling not in ("none", "linear", "yarn"):
        raise Unsupported(
            f"rope scaling {scaling!r}",
            where=f"{gguf.path}: {meta.key('rope.scaling.type')}",
            accepted="none, linear, yarn",
        )
    if meta.number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise Unsupported("a factor on attention", where=f"{gguf.path}: {meta.key('rope.scaling.attn_factor')}")
    # The file holds one number for both of DeepSeek's: their ratio is 1 in every model that was converted. Others
    # scale queries and keys by 1 + 0.1 ln(factor), which is a ratio to mscale_all_dim = 0.
    slope = meta.number("rope.scaling.yarn_log_multiplier", YARN_LOG_SLOPE)
    mscale, mscale_all_dim = (slope / YARN_LOG_SLOPE,) * 2 if entry.mla else (1.0, 0.0)
    freq_base = meta.number("rope.freq_base", 10000.0)
    if freq_base <= 1.0:  # every pair would turn at one speed, and YaRN divides by the logarithm
        meta.fail("rope.freq_base", f"found {freq_base:g}", "a number above 1")
    return entry.rope(head_dim) | {
        "freq_base": freq_base,
        "scaling": scaling,
        "factor": factor,
        "original_context": meta.integer("rope.scaling.original_context_length", meta.integer("context_length")),
        "beta_fast": meta.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": meta.number("rope.scaling.yarn_beta_slow", 1.0),
        "mscale": mscale,
        "mscale_all_dim": mscale_all_dim,
    }


def quant_label(gguf: GgufFile) -> str:
    """What the file says it is (``Q4_K_M``), else the type that most bytes have."""
    try:
        label = LlamaFileType(gguf.metadata.get("general.file_type", -1)).name
    except ValueError:
        label = ""
    if label and label != "GUESSED":
        return label.removeprefix("ALL_").removeprefix("MOSTLY_")
    by_type: dict[str, int] = {}
    for tensor in gguf.tensors.values():
        by_type[tensor.info.quant] = by_type.get(tensor.info.quant, 0) + tensor.info.n_bytes
    return max(by_type, key=lambda name: by_type[name])
