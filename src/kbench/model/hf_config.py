"""A descriptor from the config.json that comes with a model on Hugging Face: to plan without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbench.core import Attribute, Unsupported, did_you_mean

from .architectures import Architecture, architecture
from .config_json import ConfigJson
from .descriptor import Delta, Mla, ModelDescriptor, Moe

# `model_type` of a config.json -> the architecture that its GGUF files have.
MODEL_TYPES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next", "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "kimi_k2": "deepseek2",
}  # fmt: skip
# Every layer has tensors of its own, which are listed: a number without bound would take all memory. Published models
# have up to 126.
MOST_LAYERS = 1000
# Scalings of positions. Those of Llama 3.1 are divisors of frequencies in a tensor of their own: no scaling to a call.
_SCALINGS = {"default": "none", "linear": "linear", "yarn": "yarn", "llama3": "none"}


def read_config(path: Path) -> ModelDescriptor:
    """The descriptor of ``config.json`` at ``path``, without tensors; it is named after its folder.

    Raises:
        UserError: the file cannot be read.
        Unsupported: a kind of model that is not known, or a variant that no GGUF of its architecture says.
        CorruptFile: no JSON, a key that is missing or of a wrong type.
    """
    config = ConfigJson(path)
    kind = config.text("model_type")
    if kind not in MODEL_TYPES:
        raise Unsupported(
            f"model_type {kind[:80]!r}",
            where=f"{path}: model_type",
            accepted=", ".join(MODEL_TYPES),
            todo=did_you_mean(kind, MODEL_TYPES),
        )
    entry = architecture(MODEL_TYPES[kind])
    _refuse_variants(config, entry)
    heads = config.integer("num_attention_heads")
    mla = _mla(config) if entry.mla else None
    if mla is not None:
        shape: dict[str, Any] = {"kv_heads": 1, "head_dim": mla.nope + mla.rope, "mla": mla}
    else:
        shape = _heads(config, entry, heads)
    if entry.linear_attention:
        shape["delta"] = Delta(
            key_heads=config.integer("linear_num_key_heads"),
            key_dim=config.integer("linear_key_head_dim"),
            value_heads=config.integer("linear_num_value_heads"),
            value_dim=config.integer("linear_value_head_dim"),
            conv=config.integer("linear_conv_kernel_dim"),
            interval=config.integer("full_attention_interval", 4),
        )
    folder = path.resolve().parent.name
    return ModelDescriptor(
        name="".join(c for c in folder if c.isprintable()) or kind,
        architecture=entry.name,
        quant="",
        n_layers=_layers(config),
        d=config.integer("hidden_size"),
        vocab=config.integer("vocab_size"),
        heads=heads,
        ffn=config.integer("intermediate_size"),
        rms_eps=config.number("rms_norm_eps"),
        context_length=config.integer("max_position_embeddings"),
        rope=_rope(config, entry, shape["head_dim"]),
        tied=config.flag("tie_word_embeddings", False),
        draft_layers=_draft_layers(config, entry),
        moe=_moe(config, entry, kind),
        **shape,
    )


def _layers(config: ConfigJson) -> int:
    return config.integer("num_hidden_layers", most=MOST_LAYERS)


def _draft_layers(config: ConfigJson, entry: Architecture) -> int:
    """Files of DeepSeek-V3 leave its layer that drafts out."""
    if entry.name != "glm4moe":
        return 0
    return config.integer("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)


def _heads(config: ConfigJson, entry: Architecture, heads: int) -> dict[str, Any]:
    kv_heads = config.integer("num_key_value_heads", heads)
    d = config.integer("hidden_size")
    if heads % kv_heads:
        config.fail("num_key_value_heads", f"found {kv_heads}", f"a divisor of the {heads} heads")
    if not config.has("head_dim") and d % heads:
        config.fail("num_attention_heads", f"{heads} heads do not divide a width of {d}")
    head_dim = config.integer("head_dim", d // heads)
    part = 1.0
    for place in (config.mapping("rope_parameters"), config):
        if place.has("partial_rotary_factor"):
            part = place.number("partial_rotary_factor")
            break
    rotary = int(head_dim * min(part, 2.0))  # beyond 1 it is refused
    if not 0 < rotary <= head_dim or rotary % 2 or (rotary < head_dim and not entry.partial_rope):
        config.fail("partial_rotary_factor", f"found {part:g} of {head_dim} elements", "an even number of them")
    bias, norm = entry.attention_bias, entry.qk_norm
    return {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "rotary": rotary if rotary < head_dim else 0,
        "attention_bias": config.flag("attention_bias", False) if bias is None else bias,
        "qk_norm": config.flag("use_qk_norm", False) if norm is None else norm,
        "window": config.integer("sliding_window") if entry.full_every else 0,
        "full_every": entry.full_every,
    }


def _mla(config: ConfigJson) -> Mla:
    rope = config.integer("qk_rope_head_dim")
    if rope % 2:
        config.fail("qk_rope_head_dim", f"found {rope}", "an even number")
    return Mla(
        q_lora=config.integer("q_lora_rank", 0, least=0),
        kv_lora=config.integer("kv_lora_rank"),
        rope=rope,
        nope=config.integer("qk_nope_head_dim"),
        v=config.integer("v_head_dim"),
    )


def _moe(config: ConfigJson, entry: Architecture, kind: str) -> Moe | None:
    counts = [key for key in ("n_routed_experts", "num_experts", "num_local_experts") if config.has(key)]
    if not counts and (entry.experts or kind == "mixtral"):
        config.fail("num_experts", "no number of experts")
    if not counts or entry.experts is False or kind in ("llama", "mistral"):
        return None
    experts = config.integer(counts[0])
    top_k = config.top_k("num_experts_per_tok", experts)
    # V2-Lite: whatever its groups.
    grouped = kind != "deepseek_v2" or config.text("topk_method", "greedy") != "greedy"
    n_group, topk_group = config.groups("n_group", "topk_group", experts, top_k) if grouped else (1, 1)
    sigmoid = entry.scoring == "sigmoid" or kind in ("deepseek_v3", "kimi_k2")
    return Moe(
        experts=experts,
        top_k=top_k,
        n=config.integer("intermediate_size" if kind in ("mixtral", "gpt_oss") else "moe_intermediate_size"),
        shared=1 if entry.shared_gate else config.integer("n_shared_experts", 0, least=0),
        shared_n=config.integer("shared_expert_intermediate_size") if entry.shared_gate else 0,
        shared_gate=entry.shared_gate,
        first_dense=config.integer("first_k_dense_replace", 0, least=0),
        scoring="sigmoid" if sigmoid else "softmax",
        n_group=n_group,
        topk_group=topk_group,
        # Mixtral's and gpt-oss's always sum to 1; others say so.
        norm_topk_prob=config.flag("norm_topk_prob", kind in ("mixtral", "gpt_oss") or sigmoid),
        routed_scaling=config.number("routed_scaling_factor", 1.0),
    )


def _rope(config: ConfigJson, entry: Architecture, head_dim: int) -> dict[str, Attribute]:
    """Newer files have all of it in ``rope_parameters``, older ones the base beside ``rope_scaling``."""
    inside = config.mapping("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    kind = inside.text("rope_type" if inside.has("rope_type") else "type", "default")
    if kind not in _SCALINGS:
        raise Unsupported(
            f"rope scaling {kind[:80]!r}", where=f"{config.path}: rope_scaling", accepted=", ".join(_SCALINGS)
        )
    base = inside.number("rope_theta") if inside.has("rope_theta") else config.number("rope_theta", 10000.0)
    if base <= 1:
        config.fail("rope_theta", f"found {base:g}", "a number above 1")
    scaling = _SCALINGS[kind]
    return entry.rope(head_dim) | {
        "freq_base": base,
        "scaling": scaling,
        "factor": 1.0 if scaling == "none" else inside.number("factor"),
        "original_context": inside.integer(
            "original_max_position_embeddings", config.integer("max_position_embeddings")
        ),
        "beta_fast": inside.number("beta_fast", 32.0),
        "beta_slow": inside.number("beta_slow", 1.0),
        "mscale": inside.number("mscale", 1.0),
        "mscale_all_dim": inside.number("mscale_all_dim") if inside.has("mscale_all_dim") else 0.0,
    }


def _refuse_variants(config: ConfigJson, entry: Architecture) -> None:
    """What would make it another model than GGUF files of its architecture hold."""

    def refuse(key: str, found: str, accepted: str) -> None:
        raise Unsupported(found, where=f"{config.path}: {key}", accepted=accepted)

    if config.text("hidden_act", "silu") != "silu":
        refuse("hidden_act", f"activation {config.text('hidden_act')[:80]!r}", "silu")
    if config.integer("decoder_sparse_step", 1) != 1 or config.integer("moe_layer_freq", 1) != 1:
        refuse("decoder_sparse_step", "experts in some layers only", "1")
    if config.list("mlp_only_layers"):
        refuse("mlp_only_layers", "layers without experts", "none of them")
    windowed = config.integer("sliding_window", 0, least=0) > 0 and config.flag("use_sliding_window", True)
    if windowed and not entry.full_every:
        refuse("sliding_window", "attention to a window", "no window")
    layers = _layers(config)
    kinds = config.list("layer_types")
    if entry.full_every and kinds:
        expected = [f"{'sliding' if (i + 1) % entry.full_every else 'full'}_attention" for i in range(layers)]
        if kinds != expected:
            refuse("layer_types", "another order of layers", f"full attention in every {entry.full_every}nd")
    if entry.clamp is not None:
        found = config.number("swiglu_alpha", entry.clamp[0]), config.number("swiglu_limit", entry.clamp[1])
        if found != entry.clamp:
            refuse("swiglu_limit", f"alpha and limit {found}", f"{entry.clamp}")
