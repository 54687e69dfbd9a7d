"""The metadata of a synthetic GGUF: what llama.cpp needs to load it, a small but whole tokenizer included."""

from __future__ import annotations

from gguf import GGUFWriter
from gguf.constants import LlamaFileType, TokenType

from .describe import YARN_LOG_SLOPE
from .descriptor import ModelDescriptor

# Pairs that the made-up tokenizer merges; a byte-pair vocabulary without merges would be refused.
_MERGES = ("h e", "Ġ t", "Ġt he", "i n", "Ġ a", "e r", "o n", "r e", "Ġ s", "a t")
_QUANTIZATION_VERSION = 2


def write_metadata(writer: GGUFWriter, m: ModelDescriptor) -> None:
    """Adds every key of ``m`` to ``writer``."""
    writer.add_type("model")
    writer.add_name(m.name)
    writer.add_quantization_version(_QUANTIZATION_VERSION)
    prefix = "ALL_" if m.quant == "F32" else "MOSTLY_"
    if f"{prefix}{m.quant}" in LlamaFileType.__members__:
        writer.add_file_type(LlamaFileType[f"{prefix}{m.quant}"])
    writer.add_block_count(m.n_layers)
    writer.add_context_length(m.context_length)
    writer.add_embedding_length(m.d)
    writer.add_feed_forward_length(m.ffn)
    writer.add_vocab_size(m.vocab)
    writer.add_head_count(m.heads)
    writer.add_layer_norm_rms_eps(m.rms_eps)
    _rope(writer, m)
    if m.window:
        writer.add_sliding_window(m.window)
    if m.mla is None:
        writer.add_head_count_kv(m.kv_heads)
        writer.add_key_length(m.head_dim)
        writer.add_value_length(m.head_dim)
    else:
        # attn_kv_b in one piece goes with the older description of MLA, as ordinary heads.
        writer.add_head_count_kv(m.heads)
        writer.add_key_length(m.mla.nope + m.mla.rope)
        writer.add_value_length(m.mla.v)
        writer.add_kv_lora_rank(m.mla.kv_lora)
        if m.mla.q_lora:
            writer.add_q_lora_rank(m.mla.q_lora)
    if m.delta is not None:
        _linear_attention(writer, m)
    if m.moe is not None:
        _experts(writer, m)
    _tokenizer(writer, m)


def _rope(writer: GGUFWriter, m: ModelDescriptor) -> None:
    writer.add_rope_dimension_count(m.mla.rope if m.mla is not None else m.rotated)
    writer.add_rope_freq_base(float(str(m.rope["freq_base"])))
    if m.rope["scaling"] == "none":
        return
    prefix = f"{m.architecture}.rope.scaling"
    writer.add_string(f"{prefix}.type", str(m.rope["scaling"]))
    writer.add_float32(f"{prefix}.factor", float(str(m.rope["factor"])))
    if m.rope["scaling"] == "yarn":
        writer.add_uint32(f"{prefix}.original_context_length", int(str(m.rope["original_context"])))
        if m.mla is not None:
            slope = YARN_LOG_SLOPE * float(str(m.rope["mscale_all_dim"]))
            writer.add_float32(f"{prefix}.yarn_log_multiplier", slope)


def _linear_attention(writer: GGUFWriter, m: ModelDescriptor) -> None:
    a = m.delta
    assert a is not None
    writer.add_ssm_conv_kernel(a.conv)
    writer.add_ssm_state_size(a.key_dim)
    writer.add_ssm_group_count(a.key_heads)
    writer.add_ssm_time_step_rank(a.value_heads)
    writer.add_ssm_inner_size(a.values)
    writer.add_uint32(f"{m.architecture}.full_attention_interval", a.interval)


def _experts(writer: GGUFWriter, m: ModelDescriptor) -> None:
    e = m.moe
    assert e is not None
    writer.add_leading_dense_block_count(e.first_dense)
    writer.add_expert_count(e.experts)
    writer.add_expert_used_count(e.top_k)
    writer.add_expert_shared_count(e.shared)
    writer.add_expert_feed_forward_length(e.n)
    if e.shared_n:
        writer.add_expert_shared_feed_forward_length(e.shared_n)
    writer.add_expert_weights_scale(e.routed_scaling)
    writer.add_expert_weights_norm(e.norm_topk_prob)
    writer.add_uint32(f"{m.architecture}.expert_gating_func", 2 if e.scoring == "sigmoid" else 1)
    if e.n_group > 1:
        writer.add_uint32(f"{m.architecture}.expert_group_count", e.n_group)
        writer.add_uint32(f"{m.architecture}.expert_group_used_count", e.topk_group)


def byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each byte: its own where it has one, else from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = iter(range(256))
    return [chr(byte) if byte in printable else chr(256 + next(others)) for byte in range(256)]


def _tokenizer(writer: GGUFWriter, m: ModelDescriptor) -> None:
    """All bytes, the merges' results, fillers up to the model's vocabulary, and at its end the two control tokens."""
    words = [*byte_letters(), *(merge.replace(" ", "") for merge in _MERGES)]
    specials = ["<|begin|>", "<|end|>"] if m.vocab > 2 else []
    room = m.vocab - len(specials)
    words = words[:room] + [f"<{index}>" for index in range(len(words), room)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words + specials)
    writer.add_token_types([int(TokenType.NORMAL)] * room + [int(TokenType.CONTROL)] * len(specials))
    writer.add_token_merges(list(_MERGES))
    if specials:
        writer.add_bos_token_id(m.vocab - 2)
        writer.add_eos_token_id(m.vocab - 1)
    writer.add_add_bos_token(False)
