"""What ``match.class`` may name: the original model's classes as torch, transformers and KTransformers spell them.

A tree lists for each module the classes that it is an instance of. The same class is known under several paths
(``torch.nn.Linear``, ``torch.nn.modules.linear.Linear``), so paths are compared by family and last name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from .operators import OPERATORS, REGISTRY

_EVERY = ("torch.nn.Module", "torch.nn.modules.module.Module")
_TORCH = {
    "torch.nn.Linear": "Linear",
    "torch.nn.modules.linear.Linear": "Linear",
    "torch.nn.Embedding": "Embedding",
    "torch.nn.modules.sparse.Embedding": "Embedding",
}

_DENSE = "Attention MLP RMSNorm RotaryEmbedding DecoderLayer Model ForCausalLM"
_DEEPSEEK = f"{_DENSE} MoE LinearScalingRotaryEmbedding DynamicNTKScalingRotaryEmbedding YarnRotaryEmbedding"
_LLAMA = f"{_DENSE} LinearScalingRotaryEmbedding DynamicNTKScalingRotaryEmbedding"
_SPARSE = f"{_DENSE} SparseMoeBlock"
# family (the file is modeling_<family>) -> prefix of its classes, their suffixes, classes without the prefix.
_FAMILIES = {
    "deepseek": ("DeepseekV2", _DEEPSEEK, "MoEGate DeepseekV2Moe DeepseekV2TopkRouter"),
    "deepseek_v3": ("DeepseekV3", f"{_DEEPSEEK} TopkRouter", "MoEGate"),
    "llama": ("Llama", _LLAMA, ""),
    "mixtral": ("Mixtral", f"{_SPARSE} BlockSparseTop2MLP", ""),
    "qwen2": ("Qwen2", _DENSE, ""),
    "qwen2_moe": ("Qwen2Moe", _SPARSE, ""),
    "qwen3": ("Qwen3", _DENSE, ""),
    "qwen3_moe": ("Qwen3Moe", _SPARSE, ""),
    "qwen3_next": ("Qwen3Next", f"{_SPARSE} GatedDeltaNet", ""),
    "glm4_moe": ("Glm4Moe", f"{_DENSE} MoE TopkRouter", ""),
    "smallthinker": ("Smallthinker", f"{_DENSE} MoeBlock DenseMlpBlock", ""),
}
# transformers' name of a family where it is another.
_TRANSFORMERS_FAMILY = {"deepseek": "deepseek_v2"}


def _paths() -> Iterator[str]:
    yield from _EVERY
    yield from _TORCH
    for family, (prefix, suffixes, others) in _FAMILIES.items():
        theirs = _TRANSFORMERS_FAMILY.get(family, family)
        for short in (*(prefix + suffix for suffix in suffixes.split()), *others.split()):
            yield f"ktransformers.models.modeling_{family}.{short}"
            yield f"transformers.models.{theirs}.modeling_{theirs}.{short}"


KNOWN_CLASSES = frozenset(_paths())


@lru_cache(maxsize=4096)
def _canonical(name: str) -> tuple[str, str]:
    """(family, last name); the family of a bare name is empty."""
    if name in _TORCH:
        return "torch", _TORCH[name]
    path, _, short = name.rpartition(".")
    family = path.rpartition(".")[2].removeprefix("modeling_")
    return {theirs: ours for ours, theirs in _TRANSFORMERS_FAMILY.items()}.get(family, family), short


@lru_cache(maxsize=65536)
def answers_to(classes: tuple[str, ...], wanted: str) -> bool:
    """Whether a module with these ``classes`` is an instance of the class that a rule names."""
    if wanted in _EVERY or wanted in classes:
        return True
    family, short = _canonical(wanted)
    if family == "torch":
        return short in classes or any(_canonical(name) == (family, short) for name in classes)
    for name in classes:
        theirs = _canonical(name)
        if theirs[1] != short or name in REGISTRY or wanted in REGISTRY:
            continue
        if theirs[0] == family or not theirs[0] or not family:
            return True
    return False


def is_known(name: str, tree_classes: Collection[str] = ()) -> bool:
    """Whether some module of some model could be of that class; an injected operator's class counts as known."""
    if name in KNOWN_CLASSES or name in REGISTRY or name in tree_classes or name in OPERATORS:
        return True
    return "." not in name and any(name == known.rpartition(".")[2] for known in KNOWN_CLASSES)
