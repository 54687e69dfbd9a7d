"""Names of KTransformers that kbench knows and does not have: why, and what comes nearest."""

from __future__ import annotations

_XPU = "it runs on Intel GPUs through ipex_llm"
_ASCEND = "it runs on Ascend NPUs with W8A8 weights"

# Operations -> (why, nearest).
REFUSED_OPS = {
    "KLinearQ8": ("int8 per column, dequantised on every call", "marlin, or torch where memory allows"),
    "KLinearFP8": ("needs FP8 safetensors, and kbench reads GGUF", "marlin or triton"),
    "KLinearIPEXLLM": ("runs on Intel GPUs only", "auto"),
    "KLinearTorchW8A8A2": (_ASCEND, "KLinearTorch"),
    "KExpertsCPUW8A8": (_ASCEND, "KExpertsCPU"),
    # Names that only old documentation has.
    "MLPCPUExperts": ("no version of KTransformers has it any more", "KExpertsCPU"),
    "MLPCUDAExperts": ("no version of KTransformers has it any more", "KExpertsMarlin or KExpertsTorch"),
    "QuantizedLinearMarlin": ("no version of KTransformers has it any more", "KLinearMarlin"),
}

_OPERATORS = "ktransformers.operators"
# Last name of a class -> (why, nearest).
REFUSED_CLASSES = {
    "KQwen3MoeAttentionIPEXLLM": (_XPU, f"{_OPERATORS}.balance_serve_attention.KQwen3MoeAttention"),
    "KMoEGateIPEXLLM": (_XPU, f"{_OPERATORS}.gate.KMoEGate"),
    "KDeepseekRMSNormIPEXLLM": (_XPU, f"{_OPERATORS}.layernorm.RMSNorm"),
    "KQwen3NextGatedDeltaNet": ("kbench has no linear attention", "default"),
    "KTransformersLinearW8A8A2": (_ASCEND, f"{_OPERATORS}.linear.KTransformersLinear"),
    "KTransformersExpertsW8A8": (_ASCEND, f"{_OPERATORS}.experts.KTransformersExperts"),
    "KDeepseekV3MoEW8A8": (_ASCEND, f"{_OPERATORS}.experts.KDeepseekV3MoE"),
    "KDeepseekV3GateA2": (_ASCEND, f"{_OPERATORS}.gate.KMoEGate"),
    "KDeepseekV2AttentionW8A8A2": (_ASCEND, f"{_OPERATORS}.attention.KDeepseekV2Attention"),
    "KDeepseekV2AttentionW8A8A2Serve": (_ASCEND, f"{_OPERATORS}.attention.KDeepseekV2Attention"),
    "KQwen3MoeAttentionW8A8A2Serve": (_ASCEND, f"{_OPERATORS}.balance_serve_attention.KQwen3MoeAttention"),
}
# Words in other classes' paths or names -> (why, nearest).
REFUSED_WORDS = {"IPEXLLM": (_XPU, "default"), ".ascend.": (_ASCEND, "default"), "W8A8": (_ASCEND, "default")}

REFUSED_DEVICES = {"xpu": "kbench has no Intel GPUs", "npu": "kbench has no Ascend NPUs"}


def refused_class(name: str) -> tuple[str, str] | None:
    """Why kbench does not have KTransformers' class ``name``, and the nearest; None where it is none of these."""
    short = name.rpartition(".")[2]
    if short in REFUSED_CLASSES:
        return REFUSED_CLASSES[short]
    return next((told for word, told in REFUSED_WORDS.items() if word in name), None)
