"""config.json as a model's description: parameters counted by transformers, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kbench.core import CorruptFile, KbenchError, Unsupported
from kbench.model import build_tree, embedded, footprint, load_descriptor
from kbench.model.hf_config import MODEL_TYPES, read_config

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SMALL = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 320, "num_experts_per_tok": 2, "moe_intermediate_size": 160,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64,
    "v_head_dim": 64, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 4, "topk_group": 2,
}  # fmt: skip
# model_type -> what differs from SMALL.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False, "head_dim": 48},
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 8},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 96},
    "qwen2_moe": {"num_experts": 8, "shared_expert_intermediate_size": 320},
    "qwen3_moe": {"num_experts": 8, "head_dim": 96},
    "qwen3_next": {"num_experts": 8, "head_dim": 64, "shared_expert_intermediate_size": 96, "linear_num_key_heads": 2,
                   "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32},
    "glm4_moe": {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 2, "attention_bias": True,
                 "use_qk_norm": True, "head_dim": 64, "num_nextn_predict_layers": 0},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 64, "layer_types": None},
    "deepseek_v2": {**LATENT, "first_k_dense_replace": 1, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**LATENT, "first_k_dense_replace": 2},
    "kimi_k2": {**LATENT, "first_k_dense_replace": 1},
}  # fmt: skip


def _written(kind: str, folder: Path) -> tuple[Path, Any]:
    """A config.json as transformers writes it, and the model without weights that it makes of it."""
    theirs = "deepseek_v3" if kind == "kimi_k2" else kind  # transformers takes Kimi-K2 for what it is
    config = transformers.AutoConfig.for_model(theirs, **(SMALL | KINDS[kind]))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(config.to_json_string(use_diff=False)) | {"model_type": kind}))
    return path, model


def test_every_kind_is_tested() -> None:
    assert set(KINDS) == set(MODEL_TYPES)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_that_transformers_makes(kind: str, tmp_path: Path) -> None:
    path, model = _written(kind, tmp_path)
    descriptor, file = load_descriptor(str(path), "F16")
    assert file is None and descriptor.architecture == MODEL_TYPES[kind]
    theirs = sum(p.numel() for p in model.parameters())
    theirs += sum(b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))
    assert descriptor.n_params == theirs
    assert load_descriptor(str(tmp_path), "F16")[0] == descriptor
    assert build_tree(descriptor).weight_bytes == descriptor.n_bytes
    assert footprint(descriptor, prompt_tokens=8, context=8).active_params <= theirs


def test_the_defaults_of_transformers_are_gpt_oss_120b(tmp_path: Path) -> None:
    path = tmp_path / "gpt-oss-120b" / "config.json"
    path.parent.mkdir()
    path.write_text(transformers.GptOssConfig().to_json_string(use_diff=False))
    assert load_descriptor(str(path))[0] == embedded("gpt-oss-120b")


def test_routing_and_rope_of_older_files(tmp_path: Path) -> None:
    """DeepSeek-V3's, as it was published: no ``rope_parameters``."""
    v3 = embedded("deepseek-v3")
    assert v3.mla is not None and v3.moe is not None
    yarn = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
    config = {
        "model_type": "deepseek_v3", "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "first_k_dense_replace": 3, "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc",
        "v_head_dim": 128, "vocab_size": 129280,
        "rope_scaling": yarn | {"original_max_position_embeddings": 4096},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load_descriptor(str(tmp_path))[0]
    assert dataclasses.replace(found, name=v3.name) == v3
    assert found.rope == v3.rope


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_groups_of_experts(kind: str, tmp_path: Path) -> None:
    path, _ = _written(kind, tmp_path)
    moe = read_config(path).moe
    assert moe is not None and (moe.n_group, moe.topk_group) == (4, 2)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"topk_method": "greedy"}))  # as DeepSeek-V2-Lite says
    moe = read_config(path).moe
    assert moe is not None and (moe.n_group, moe.topk_group) == ((1, 1) if kind == "deepseek_v2" else (4, 2))


@pytest.mark.parametrize(
    ("kind", "changes", "error", "says"),
    [
        ("llama", {"model_type": "lama"}, Unsupported, "did you mean llama?"),
        ("llama", {"model_type": 3}, CorruptFile, "model_type"),
        ("llama", {"hidden_size": None}, CorruptFile, "hidden_size"),
        ("llama", {"hidden_size": "256"}, CorruptFile, "found '256'"),
        ("llama", {"num_hidden_layers": 2**40}, CorruptFile, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": 2**30}, CorruptFile, "at most 1000"),  # each would be described
        ("llama", {"rms_norm_eps": 10**400}, CorruptFile, "rms_norm_eps"),
        ("glm4_moe", {"rope_parameters": {"partial_rotary_factor": 1e308}}, CorruptFile, "partial_rotary_factor"),
        ("deepseek_v3", {"qk_rope_head_dim": 3}, CorruptFile, "an even number"),
        ("llama", {"num_key_value_heads": 3}, CorruptFile, "a divisor of the 4 heads"),
        ("llama", {"rms_norm_eps": float("nan")}, CorruptFile, "rms_norm_eps"),
        ("llama", {"rope_parameters": [1]}, CorruptFile, "rope_parameters"),
        ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, Unsupported, "longrope"),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1}}, CorruptFile, "rope_theta"),
        ("llama", {"hidden_act": "gelu"}, Unsupported, "gelu"),
        ("mistral", {"sliding_window": 4096}, Unsupported, "sliding_window"),
        ("mixtral", {"num_local_experts": None}, CorruptFile, "no number of experts"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, Unsupported, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, Unsupported, "decoder_sparse_step"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, CorruptFile, "at most the 8 experts"),
        ("gpt_oss", {"swiglu_limit": 8.0}, Unsupported, "swiglu_limit"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 4}, Unsupported, "layer_types"),
        ("gpt_oss", {"sliding_window": None}, CorruptFile, "sliding_window"),
        ("glm4_moe", {"rope_parameters": {"partial_rotary_factor": 3}}, CorruptFile, "partial_rotary_factor"),
        ("deepseek_v3", {"n_group": 3}, CorruptFile, "n_group"),
        ("deepseek_v3", {"num_experts_per_tok": 5}, CorruptFile, "topk_group"),
    ],
)
def test_what_is_refused(
    kind: str, changes: dict[str, Any], error: type[KbenchError], says: str, tmp_path: Path
) -> None:
    path, _ = _written(kind, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(error) as found:
        load_descriptor(str(path))
    assert says in f"{found.value.message} {found.value.where}"
    assert str(path) in found.value.where


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"model_type": "llama"' + " " * (1 << 20) + "}", "\xff"]
)
def test_what_is_no_config(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptFile) as error:
        load_descriptor(str(path))
    assert str(path) in error.value.where
