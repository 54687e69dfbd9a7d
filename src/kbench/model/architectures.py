"""One entry per architecture: what its GGUF metadata does not say, and the names of its Hugging Face classes."""

from __future__ import annotations

from dataclasses import dataclass

from kbench.core import Attribute, Unsupported, did_you_mean

from .descriptor import ModelDescriptor


@dataclass(frozen=True, slots=True)
class ClassFamily:
    """Where the model's Python classes live and how they are called: ``{module}.{prefix}Attention`` and so on.

    ``moe``, ``router`` and ``rotary`` hold full class names below ``module``; ``linear_router``: KTransformers' copy of
    the model has a plain ``nn.Linear`` there. ``moe_name`` is the layer's attribute that holds its experts,
    ``router_name`` and ``shared_name`` those of them that hold the router and the shared ones.
    """

    modules: tuple[str, ...]
    prefix: str
    moe: tuple[str, ...] = ()
    router: tuple[str, ...] = ()
    rotary: tuple[str, ...] = ()
    linear_router: bool = False
    moe_name: str = "mlp"
    router_name: str = "gate"
    shared_name: str = "shared_experts"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What files of one ``general.architecture`` have in common. None: some files have it and others do not.

    ``rope_mode``: ``norm`` rotates neighbouring pairs (the q and k rows of llama GGUFs are stored for that),
    ``neox`` rotates halves; ``partial_rope``: perhaps of the first elements of a head only. ``ffn_norm``: how the norm
    before the MLP is called. ``norm_topk_prob``, ``scoring``: what holds where the metadata do not say.
    ``shared_gate``: the shared expert is weighed by a sigmoid of its own. ``linear_attention``: most layers attend by
    the gated delta rule. ``generates``: the engine runs it; without that it can be planned only.

    ``full_every``: one layer in so many, the last of them, attends to all tokens, the others to a window. ``sinks``:
    each head has a learned logit that takes weight from all tokens. ``mlp_bias``: biases on the output projection of
    attention, on the router and on the experts. ``clamp``: alpha and limit of the experts' clamped SwiGLU, else
    SiLU * up. ``exact_yarn``: YaRN's ramp is not widened to whole pairs. ``expert_type``: what the models' experts were
    published in; quantizers leave it as it is.
    """

    name: str
    rope_mode: str
    classes: ClassFamily
    qk_norm: bool | None = False
    attention_bias: bool | None = False
    mla: bool = False
    generates: bool = True
    partial_rope: bool = False
    ffn_norm: str = "ffn_norm"
    experts: bool | None = False
    norm_topk_prob: bool = False
    shared_gate: bool = False
    scoring: str = "softmax"
    linear_attention: bool = False
    full_every: int = 0
    sinks: bool = False
    mlp_bias: bool = False
    clamp: tuple[float, float] | None = None
    exact_yarn: bool = False
    expert_type: str = ""

    def rope(self, head_dim: int) -> dict[str, Attribute]:
        """What rope calls have in common with those of all models of this architecture."""
        return {"mode": self.rope_mode, "head_dim": head_dim, **({"exact_bounds": 1} if self.exact_yarn else {})}


_LLAMA = ClassFamily(
    ("transformers.models.llama.modeling_llama", "ktransformers.models.modeling_llama"),
    "Llama",
    rotary=("LlamaRotaryEmbedding",),
)
_QWEN2 = ClassFamily(("transformers.models.qwen2.modeling_qwen2",), "Qwen2", rotary=("Qwen2RotaryEmbedding",))
_QWEN3 = ClassFamily(("transformers.models.qwen3.modeling_qwen3",), "Qwen3", rotary=("Qwen3RotaryEmbedding",))
_MIXTRAL = ClassFamily(
    ("ktransformers.models.modeling_mixtral", "transformers.models.mixtral.modeling_mixtral"),
    "Mixtral",
    moe=("MixtralSparseMoeBlock",),
    router=("MixtralTopKRouter",),
    rotary=("MixtralRotaryEmbedding",),
    linear_router=True,
    moe_name="block_sparse_moe",
)
_QWEN2_MOE = ClassFamily(
    ("ktransformers.models.modeling_qwen2_moe", "transformers.models.qwen2_moe.modeling_qwen2_moe"),
    "Qwen2Moe",
    moe=("Qwen2MoeSparseMoeBlock",),
    router=("Qwen2MoeTopKRouter",),
    rotary=("Qwen2MoeRotaryEmbedding",),
    linear_router=True,
    shared_name="shared_expert",
)
_QWEN3_MOE = ClassFamily(
    ("ktransformers.models.modeling_qwen3_moe", "transformers.models.qwen3_moe.modeling_qwen3_moe"),
    "Qwen3Moe",
    moe=("Qwen3MoeSparseMoeBlock",),
    router=("Qwen3MoeTopKRouter",),
    rotary=("Qwen3MoeRotaryEmbedding",),
    linear_router=True,
)
_GLM4_MOE = ClassFamily(
    ("ktransformers.models.modeling_glm4_moe", "transformers.models.glm4_moe.modeling_glm4_moe"),
    "Glm4Moe",
    moe=("Glm4MoeMoE",),
    router=("Glm4MoeTopkRouter",),
    rotary=("Glm4MoeRotaryEmbedding",),
    linear_router=True,
)
_QWEN3_NEXT = ClassFamily(
    ("transformers.models.qwen3_next.modeling_qwen3_next",),
    "Qwen3Next",
    moe=("Qwen3NextSparseMoeBlock",),
    router=("Qwen3NextTopKRouter",),
    rotary=("Qwen3NextRotaryEmbedding",),
    linear_router=True,
    shared_name="shared_expert",
)
_GPT_OSS = ClassFamily(
    ("transformers.models.gpt_oss.modeling_gpt_oss",),
    "GptOss",
    moe=("GptOssMLP",),
    router=("GptOssTopKRouter",),
    rotary=("GptOssRotaryEmbedding",),
    router_name="router",
)
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
        # With experts: Mixtral.
        Architecture("llama", "norm", _LLAMA, attention_bias=None, experts=None, norm_topk_prob=True),
        Architecture("qwen2", "neox", _QWEN2, attention_bias=True),
        Architecture("qwen3", "neox", _QWEN3, qk_norm=True),
        Architecture("qwen2moe", "neox", _QWEN2_MOE, attention_bias=True, experts=True, shared_gate=True),
        Architecture("qwen3moe", "neox", _QWEN3_MOE, qk_norm=True, experts=True, norm_topk_prob=True),
        Architecture(
            "glm4moe", "neox", _GLM4_MOE, qk_norm=None, attention_bias=None, experts=True, norm_topk_prob=True,
            scoring="sigmoid", partial_rope=True, ffn_norm="post_attention_norm",
        ),
        Architecture(
            "qwen3next", "neox", _QWEN3_NEXT, qk_norm=True, experts=True, norm_topk_prob=True, shared_gate=True,
            partial_rope=True, ffn_norm="post_attention_norm", linear_attention=True, generates=False,
        ),
        # The softmax of the chosen experts' logits is the softmax of all, renormalised.
        Architecture(
            "gpt-oss", "neox", _GPT_OSS, attention_bias=True, experts=True, norm_topk_prob=True,
            ffn_norm="post_attention_norm", full_every=2, sinks=True, mlp_bias=True, clamp=(1.702, 7.0),
            exact_yarn=True, expert_type="MXFP4",
        ),
        Architecture("deepseek2", "norm", _DEEPSEEK_V2, mla=True, experts=None),
    )
}  # fmt: skip


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
    """The classes of this model: GGUF calls V2 and V3 both deepseek2, Llama and Mixtral both llama."""
    if descriptor.moe is not None and descriptor.architecture == "llama":
        return _MIXTRAL
    if descriptor.moe is not None and descriptor.moe.scoring == "sigmoid" and descriptor.mla is not None:
        return _DEEPSEEK_V3
    return architecture(descriptor.architecture).classes
