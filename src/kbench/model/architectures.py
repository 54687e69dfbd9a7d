"""One entry per architecture: what its GGUF metadata does not say, and the names of its Hugging Face classes."""

from __future__ import annotations

from dataclasses import dataclass

from kbench.core import Unsupported, did_you_mean

from .descriptor import ModelDescriptor


@dataclass(frozen=True, slots=True)
class ClassFamily:
    """Where the model's Python classes live and how they are called: ``{module}.{prefix}Attention`` and so on.

    ``mlp_prefix`` differs where a model borrows; ``router`` and ``rotary`` hold full class names below ``module``.
    """

    modules: tuple[str, ...]
    prefix: str
    moe: tuple[str, ...] = ()
    router: tuple[str, ...] = ()
    rotary: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Architecture:
    """``rope_mode``: ``norm`` rotates neighbouring pairs (the q and k rows of llama GGUFs are stored for that),
    ``neox`` rotates halves. ``attention_bias`` is None where some files have one and others do not. ``generates`` says
    that the engine runs it; without that it can be planned only.
    """

    name: str
    rope_mode: str
    classes: ClassFamily
    qk_norm: bool = False
    attention_bias: bool | None = False
    mla: bool = False
    generates: bool = True


_LLAMA = ClassFamily(
    ("transformers.models.llama.modeling_llama", "ktransformers.models.modeling_llama"),
    "Llama",
    rotary=("LlamaRotaryEmbedding",),
)
_QWEN2 = ClassFamily(("transformers.models.qwen2.modeling_qwen2",), "Qwen2", rotary=("Qwen2RotaryEmbedding",))
_QWEN3 = ClassFamily(("transformers.models.qwen3.modeling_qwen3",), "Qwen3", rotary=("Qwen3RotaryEmbedding",))
_DEEPSEEK_V2 = ClassFamily(
    ("ktransformers.models.modeling_deepseek", "transformers.models.deepseek_v2.modeling_deepseek_v2"),
    "DeepseekV2",
    moe=("DeepseekV2MoE", "DeepseekV2Moe"),
    router=("MoEGate", "DeepseekV2TopkRouter"),
    rotary=("DeepseekV2YarnRotaryEmbedding", "DeepseekV2RotaryEmbedding"),
)
_DEEPSEEK_V3 = ClassFamily(
    ("ktransformers.models.modeling_deepseek_v3", "transformers.models.deepseek_v3.modeling_deepseek_v3"),
    "DeepseekV3",
    moe=("DeepseekV3MoE",),
    router=("MoEGate", "DeepseekV3TopkRouter"),
    rotary=("DeepseekV3YarnRotaryEmbedding", "DeepseekV3RotaryEmbedding"),
)

ARCHITECTURES = {
    entry.name: entry
    for entry in (
        Architecture("llama", "norm", _LLAMA, attention_bias=None),
        Architecture("qwen2", "neox", _QWEN2, attention_bias=True),
        Architecture("qwen3", "neox", _QWEN3, qk_norm=True),
        Architecture("deepseek2", "norm", _DEEPSEEK_V2, mla=True),
    )
}


def architecture(name: str, where: str = "") -> Architecture:
    """The entry for ``general.architecture``.

    Raises:
        Unsupported: there is none; the message lists those there are.
    """
    if name not in ARCHITECTURES:
        raise Unsupported(
            f"architecture {name!r} is not supported",
            where=where,
            accepted=", ".join(ARCHITECTURES),
            todo=did_you_mean(name, ARCHITECTURES),
        )
    return ARCHITECTURES[name]


def class_family(descriptor: ModelDescriptor) -> ClassFamily:
    """The classes of this model: GGUF calls V2 and V3 both deepseek2, Hugging Face does not."""
    if descriptor.moe is not None and descriptor.moe.scoring == "sigmoid":
        return _DEEPSEEK_V3
    return architecture(descriptor.architecture).classes
