"""Tiny DeepSeek-V2 and V3 of Hugging Face transformers, and GGUF files of them in both layouts of ``kv_b``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from hf_oracle import write_vocabulary

CONTEXT, ORIGINAL_CONTEXT, VOCAB = 640, 32, 150

# No two widths alike but where the kernels want multiples of 32 (blocks of quantised weights and caches).
_SHARED: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,  # transformers' norms of latents know no other
    "initializer_range": 0.12,  # attention that looks somewhere
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}
_PLAIN = {"rope_type": "default", "rope_theta": 5000.0}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": CONTEXT / ORIGINAL_CONTEXT,
    "original_max_position_embeddings": ORIGINAL_CONTEXT,
    "beta_fast": 4.0,  # not the default, and a ramp that a head of 64 has pairs on both sides of
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}

# Name -> (class, what it has of its own).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # DeepSeek-V2-Lite: no query compression, plain top-k.
    "v2-lite": ("V2", {"q_lora_rank": None, "topk_method": "greedy", "rope_parameters": _YARN}),
    # DeepSeek-V2: the best groups first; weights scaled up.
    "v2": (
        "V2",
        {
            "q_lora_rank": 32,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 4.0,
            "rope_parameters": _YARN,
        },
    ),
    # DeepSeek-V3: sigmoid, a correction bias, groups by their best two, weights that sum to one before scaling.
    "v3": ("V3", {"q_lora_rank": 32, "n_group": 4, "topk_group": 2, "rope_parameters": _YARN}),
    # Kimi-K2: V3 without groups, and here without YaRN.
    "kimi": ("V3", {"q_lora_rank": 32, "n_group": 1, "topk_group": 1, "rope_parameters": _PLAIN}),
}

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}


def make_deepseek(name: str) -> Any:
    """The random model of variant ``name``, in float32."""
    kind, own = VARIANTS[name]
    config = getattr(transformers, f"Deepseek{kind}Config")(**_SHARED, **own)
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("mlp.gate.weight"):  # zeros when new: every expert would be as good as any
                parameter.normal_(0.0, 0.2)
            elif parameter.dim() == 1:  # norms of ones would not show when left out
                parameter.add_(torch.randn_like(parameter) * 0.3)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.2)
    return model


def _tensors(model: Any, split_kv_b: bool) -> dict[str, np.ndarray]:
    """Every weight under its GGUF name."""
    config, found = model.config, {}
    state = {key: value.detach().float().numpy() for key, value in model.state_dict().items()}
    state |= {key: value.numpy() for key, value in model.named_buffers() if key.endswith("e_score_correction_bias")}
    for key, value in state.items():
        if not key.startswith("model.layers."):
            top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
            found[f"{top[key.rpartition('.')[0]]}.weight"] = value
            continue
        _, _, index, rest = key.split(".", 3)
        block = f"blk.{index}."
        if rest == "mlp.experts.gate_up_proj":
            found[f"{block}ffn_gate_exps.weight"], found[f"{block}ffn_up_exps.weight"] = np.split(value, 2, axis=1)
        elif rest == "mlp.experts.down_proj":
            found[f"{block}ffn_down_exps.weight"] = value
        elif rest == "mlp.gate.e_score_correction_bias":
            found[f"{block}exp_probs_b.bias"] = value
        elif rest == "self_attn.kv_b_proj.weight" and split_kv_b:
            heads = value.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
            found[f"{block}attn_k_b.weight"] = heads[:, : config.qk_nope_head_dim].transpose(0, 2, 1)
            found[f"{block}attn_v_b.weight"] = heads[:, config.qk_nope_head_dim :]
        else:
            found[f"{block}{_PARTS[rest.rpartition('.')[0]]}.weight"] = value
    return found


def write_deepseek(model: Any, path: Path, *, split_kv_b: bool, quant: str = "F32") -> None:
    """Writes ``model``; matrices but the router's in ``quant``."""
    config = model.config
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _attention_keys(writer, config, split_kv_b)
    _expert_keys(writer, config)
    write_vocabulary(writer, config.vocab_size)
    kind = gguf.GGMLQuantizationType[quant]
    for name, value in _tensors(model, split_kv_b).items():
        value = np.ascontiguousarray(value)
        if quant == "F32" or value.ndim == 1 or "ffn_gate_inp" in name:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _attention_keys(writer: gguf.GGUFWriter, config: Any, split_kv_b: bool) -> None:
    rope, nope = config.qk_rope_head_dim, config.qk_nope_head_dim
    if split_kv_b:  # MLA described as one head of the latent's width
        writer.add_head_count_kv(1)
        writer.add_key_length(config.kv_lora_rank + rope)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(nope + rope)
        writer.add_value_length_mla(config.v_head_dim)
    else:
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(nope + rope)
        writer.add_value_length(config.v_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_rope_dimension_count(rope)
    parameters = config.rope_parameters
    writer.add_rope_freq_base(parameters["rope_theta"])
    if parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(parameters["factor"])
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * parameters["mscale_all_dim"])
        writer.add_rope_scaling_yarn_beta_fast(parameters["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(parameters["beta_slow"])


def _expert_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    v3 = config.model_type == "deepseek_v3"
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(bool(v3 and config.norm_topk_prob))
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if v3 else gguf.ExpertGatingFuncType.SOFTMAX)
    if config.n_group and config.n_group > 1:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
