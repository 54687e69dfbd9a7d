"""The operators that ``replace.class`` may name: kbench's registry names, and KTransformers' classes as aliases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points

from kbench.core import did_you_mean

from .implementations import EXPERTS_BACKENDS
from .refused import refused_class
from .schema import DEFAULT, THRESHOLDS

# Somebody's own operators register their package in this group; it is read, never imported, here.
ENTRY_POINT_GROUP = "kbench.operators"

# Thread counts: of both phases, and of one, which then goes before.
THREADS = ("threads", "generate_threads", "prefill_threads")

# kwarg -> kind of value. These make a placement.
COMMON = {
    "generate_device": "device",
    "generate_op": "op",
    "prefill_device": "device",
    "prefill_op": "op",
    "out_device": "device",
    **dict.fromkeys(THREADS, "count"),
    "block": "block",
}

# Arguments that every operator of somebody's own is made with, so that no kwarg of a rule can be called like them.
CONSTRUCTOR = ("key", "gguf_loader", "config", "orig_module")

# kwargs with a meaning of their own.
_MODEL = {
    "device": "device",
    "transfer_map": "transfer_map",
    **dict.fromkeys(THRESHOLDS, "number"),
}

# kwargs that KTransformers has and that change nothing in kbench: known, checked for their kind, kept.
_ATTENTION_INERT = {"absorb_for_prefill": "bool", "chunck_size": "count", "chunk_size": "count"}
_LINEAR_INERT = {
    "num_bits": "count",
    "group_size": "count",
    "act_order": "bool",
    "is_k_full": "bool",
    "stride": "count",
    "group_max_len": "count",
    "block_size": "count",
    "precision": "text",
}
_INERT: dict[str, dict[str, str]] = {
    "Linear": _LINEAR_INERT,
    "Experts": {"backend": "backend"},
    "Attention": _ATTENTION_INERT,
    "MoEGate": {"use_quant": "bool"},
}

# What kbench's own ``Experts`` take: KTransformers' would fail on them.
_EXPERTS = {"gpu_experts": "experts", "gpu_experts_device": "gpu", "gpu_experts_op": "op"}

# What kbench's attention does, and of KTransformers' the one class that has it: elsewhere the kwarg is inert.
_ATTENTION = {"absorb_for_prefill": "bool"}
_ABSORBING = ("", "KDeepseekV2Attention")

REGISTRY = (
    "Linear", "Experts", "MoE", "Attention", "MLP", "RMSNorm", "RotaryEmbedding", "Embedding", "Model", "MoEGate",
    DEFAULT,
)  # fmt: skip

# module of ktransformers.operators -> kbench's operator -> its classes.
_KT_CLASSES: dict[str, dict[str, str]] = {
    "linear": {"Linear": "KTransformersLinear"},
    "experts": {
        "Experts": "KTransformersExperts KTransformersExpertsV2 KSmallthinkerExperts KGlm4Experts",
        "MoE": "KQwen2MoeSparseMoeBlock KDeepseekV2MoE KDeepseekV3MoE KMistralSparseMoEBlock KDeepseekV3MoEV2 "
        "KQwen2MoeSparseMoeBlockV2 KQwen3MoeSparseMoeBlockV2 KSmallthinkerMoeBlock KGlm4MoeMoE "
        "KQwen3NextSparseMoeBlockV2",
    },
    "attention": {"Attention": "KDeepseekV2Attention KLlamaAttention"},
    "balance_serve_attention": {
        "Attention": "flashinfer_attn KQwen2MoeAttention KQwen3MoeAttention deepseek_torch_attn "
        "KSmallthinkerAttention KGlm4MoeAttention KQwen3NextAttention"
    },
    "RoPE": {
        "RotaryEmbedding": "RotaryEmbedding RotaryEmbeddingV2 RotaryEmbeddingV3 RotaryEmbeddingV4 "
        "YarnRotaryEmbedding YarnRotaryEmbeddingV3 DynamicNTKScalingRotaryEmbedding KQwen3MoeRotaryEmbedding "
        "KSmallthinkerRotaryEmbedding KGlm4MoeRotaryEmbedding"
    },
    "models": {"Model": "KDeepseekV2Model KQwen2MoeModel KLlamaModel"},
    "gate": {"MoEGate": "KMoEGate KMoEGateQwen2Moe KMoEGateDeepSeekV3"},
    "layernorm": {
        "RMSNorm": "RMSNorm KQwen2MoeRMSNorm KQwen3MoeRMSNorm KQwen3NextRMSNorm KSmallthinkerRMSNorm "
        "KGlm4MoeRMSNorm DeepseekV3RMSNormTorch"
    },
    "mlp": {"MLP": "kDeepseekV3MLP KQwen2MoeMLP KSmallthinkerDenseMlpBlock KGlm4MoeMLP"},
}

# What KTransformers' constructors take where the file is silent.
_KT_DEVICES = {"generate_device": "cuda", "prefill_device": "cuda"}
_KT_DEFAULTS: dict[str, dict[str, str]] = {
    "Linear": {**_KT_DEVICES, "generate_op": "KLinearMarlin", "prefill_op": "KLinearTorch"},
    "Experts": {
        "generate_device": "cpu",
        "generate_op": "KExpertsCPU",
        "prefill_device": "cuda",
        "prefill_op": "KExpertsTorch",
    },
}

# `prefill_op: None` (the text) is how these say "no prefill of its own"; the others fail on it in KTransformers.
NO_PREFILL_OP = ("KTransformersExpertsV2", "KSmallthinkerExperts", "KGlm4Experts")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator by its registry ``name``; ``alias`` is the name in the file where that is another.

    ``accepts`` are its kwargs with the kind of each; those in ``inert`` change nothing here. ``defaults`` are
    KTransformers'. A ``foreign`` operator is somebody's own: it takes any kwargs.
    """

    name: str
    alias: str = ""
    accepts: Mapping[str, str] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()
    defaults: Mapping[str, str] = field(default_factory=dict)
    foreign: bool = False

    @property
    def is_kt(self) -> bool:
        return self.alias.startswith("ktransformers.")

    @property
    def short(self) -> str:
        return (self.alias or self.name).rpartition(".")[2]


def _operator(name: str, alias: str = "") -> Operator:
    inert = dict(_INERT.get(name, {}))
    if name == "Attention" and alias.rpartition(".")[2] in _ABSORBING:
        inert = {key: kind for key, kind in inert.items() if key not in _ATTENTION}
    accepts = {**COMMON, **(_MODEL if name == "Model" else {})}
    accepts |= {**(_ATTENTION if name == "Attention" else {}), **inert}
    accepts |= _EXPERTS if name == "Experts" and not alias else {}
    defaults = _KT_DEFAULTS.get(name, _KT_DEVICES) if alias else {}
    return Operator(name, alias, accepts, frozenset(inert), defaults)


def _table() -> dict[str, Operator]:
    table = {name: _operator(name) for name in REGISTRY}
    for module, by_name in _KT_CLASSES.items():
        for name, classes in by_name.items():
            for short in classes.split():
                alias = f"ktransformers.operators.{module}.{short}"
                table[alias] = _operator(name, alias)
    return table


OPERATORS = _table()
_BY_SHORT = {operator.short: alias for alias, operator in OPERATORS.items() if operator.is_kt}


class UnknownOperator(ValueError):
    """No such operator; ``accepted`` and ``todo`` say what would do."""

    def __init__(self, found: str, accepted: str, todo: str = "") -> None:
        super().__init__(found)
        self.accepted, self.todo = accepted, todo


@lru_cache(maxsize=1)
def registered_packages() -> frozenset[str]:
    """Packages whose operators are registered in ``ENTRY_POINT_GROUP``; nothing is imported."""
    return frozenset(point.value.partition(":")[0].partition(".")[0] for point in entry_points(group=ENTRY_POINT_GROUP))


def is_trusted(dotted: str, trust: Iterable[str]) -> bool:
    """Whether ``dotted`` names something in a package (or module) that is registered or trusted."""
    return any(
        dotted.startswith(f"{package}.") for package in (*trust, *registered_packages()) if package != "ktransformers"
    )


def operator(name: str, trust: Iterable[str] = ()) -> Operator:
    """The operator that ``replace.class`` names.

    Raises:
        UnknownOperator: none of ours, none of KTransformers', and in no trusted package.
    """
    known = OPERATORS.get(name)
    if known is not None:
        return known
    if is_trusted(name, trust):
        return Operator(name, accepts=COMMON, foreign=True)
    accepted = f"{', '.join(REGISTRY)}, or a class of ktransformers.operators"
    refused = refused_class(name)
    if refused is not None:
        raise UnknownOperator(f"{name!r} is not in kbench: {refused[0]}", accepted, f"nearest: {refused[1]}")
    short = name.rpartition(".")[2]
    if short in _BY_SHORT:  # the class is right, the path to it is not
        raise UnknownOperator(f"unknown operator {name!r}", accepted, f"did you mean {_BY_SHORT[short]}?")
    todo = did_you_mean(name, OPERATORS)
    if not todo and "." in name and not name.startswith("ktransformers."):
        package = name.partition(".")[0]
        todo = f"if it is your own, register it in the entry-point group {ENTRY_POINT_GROUP} or pass --trust {package}"
    raise UnknownOperator(f"unknown operator {name!r}", accepted, todo)


def backends() -> str:
    return ", ".join(EXPERTS_BACKENDS)
