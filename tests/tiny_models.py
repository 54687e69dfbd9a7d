"""Small models of every architecture."""

from __future__ import annotations

from typing import Any

from kbench.model import Mla, ModelDescriptor, Moe, with_quant


def _rope(mode: str, head_dim: int, scaling: str = "none", exact: bool = False) -> dict[str, Any]:
    yarn = scaling == "yarn"
    return {
        "mode": mode,
        "head_dim": head_dim,
        "freq_base": 20000.0,  # no reader's default
        "scaling": scaling,
        "factor": 40.0 if yarn else 1.0,
        "original_context": 128 if yarn else 512,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0 if yarn else 0.0,
        **({"exact_bounds": 1} if exact else {}),
    }


ARCHITECTURES = (
    "llama", "qwen2", "qwen3", "mixtral", "qwen2moe", "qwen3moe", "glm4moe", "gpt-oss", "deepseek2", "deepseek-v3",
)  # fmt: skip

_EXPERTS = {
    "mixtral": Moe(8, 2, 512, 0, 0, "softmax", 1, 1, True, 1.0),
    "qwen2moe": Moe(8, 2, 256, 1, 0, "softmax", 1, 1, False, 1.0, shared_n=768, shared_gate=True),
    "glm4moe": Moe(8, 2, 256, 1, 1, "sigmoid", 1, 1, True, 1.5),
    "qwen3moe": Moe(8, 2, 256, 0, 0, "softmax", 1, 1, True, 1.0),
    "gpt-oss": Moe(8, 2, 256, 0, 0, "softmax", 1, 1, True, 1.0),
}


def make_tiny(architecture: str = "llama", quant: str = "Q4_K_M", **changes: Any) -> ModelDescriptor:
    """Three layers of width 256 of any of ``ARCHITECTURES``: ``deepseek-v3`` is deepseek2 with sigmoid routing,
    ``mixtral`` llama with experts."""
    latent = architecture.startswith("deepseek")
    mode = "norm" if architecture in ("llama", "mixtral") else "neox"
    fields: dict[str, Any] = {
        "name": f"tiny {architecture}",
        "architecture": {"deepseek-v3": "deepseek2", "mixtral": "llama"}.get(architecture, architecture),
        "quant": "",
        "n_layers": 3,
        "d": 256,
        "vocab": 320,
        "heads": 4,
        "kv_heads": 1 if latent else 2,
        "head_dim": 96 if latent else 64,
        "ffn": 512,
        "rms_eps": 2.0**-20,  # a float32
        "context_length": 512,
        "rope": _rope("norm", 96, "yarn") if latent else _rope(mode, 64, exact=architecture == "gpt-oss"),
        "qk_norm": architecture in ("qwen3", "qwen3moe"),
        "attention_bias": architecture in ("qwen2", "qwen2moe", "glm4moe", "gpt-oss"),
        "window": 16 if architecture == "gpt-oss" else 0,
        "full_every": 2 if architecture == "gpt-oss" else 0,
        "rotary": 32 if architecture == "glm4moe" else 0,
        "moe": _EXPERTS.get(architecture),
    }
    if latent:
        v3 = architecture == "deepseek-v3"
        fields["mla"] = Mla(q_lora=256, kv_lora=256, rope=32, nope=64, v=64)
        fields["moe"] = Moe(8, 2, 256, 1, 1, "sigmoid" if v3 else "softmax", 4, 2, v3, 2.5 if v3 else 16.0)
    return with_quant(ModelDescriptor(**(fields | changes)), quant)
