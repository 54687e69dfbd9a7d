"""Which type llama.cpp's quantizer gives each tensor of a model for a label such as ``Q4_K_M``.

The rules as of early 2026, without an importance matrix (K-quants do not depend on one). DeepSeek's ``attn_kv_b`` has
the base type: the quantizer began to upgrade it in March 2026, and every published file is older.

Positions: a rule that favours some layers counts ``ffn_down`` by the layer's number among all layers of the file, and
the tensors of values by their own order, which differs where only some layers have them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kbench.core import TensorInfo, Unsupported, did_you_mean, quant

from .tensor_table import TensorSpec

# Label -> the type of every tensor that no rule below treats differently.
BASE_TYPES = {
    "F32": "F32", "F16": "F16", "BF16": "BF16",
    "Q8_0": "Q8_0", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q5_0": "Q5_0", "Q5_1": "Q5_1",
    "Q2_K": "Q2_K", "Q2_K_S": "Q2_K", "Q3_K_S": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K", "Q6_K": "Q6_K",
    "IQ4_XS": "IQ4_XS", "IQ4_NL": "IQ4_NL",
    # That of stacks of experts; everything else is Q8_0.
    "MXFP4_MOE": "MXFP4",
}  # fmt: skip

# Where rows are no multiple of a type's block of 256: the type with blocks of 32 that takes its place.
_FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a tensor stands among its like: ``index`` of ``count``; ``gqa`` = heads per kv head."""

    index: int
    count: int
    gqa: int

    @property
    def wants_more_bits(self) -> bool:
        """The first and last eighth of the layers and every third between: errors there hurt most."""
        eighth = self.count // 8
        return self.index < eighth or self.index >= 7 * self.count // 8 or (self.index - eighth) % 3 == 2


_Rule = Callable[[_Position], str | None]

_DOWN: dict[str, _Rule] = {
    "Q2_K": lambda at: "Q3_K",
    "Q2_K_S": lambda at: "Q4_K" if at.index < at.count // 8 else None,
    "Q3_K_M": lambda at: "Q5_K" if at.index < at.count // 16 else "Q4_K",
    "Q3_K_L": lambda at: "Q5_K",
    "Q4_K_S": lambda at: "Q5_K" if at.index < at.count // 8 else None,
    "Q4_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "Q5_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "IQ4_XS": lambda at: "Q5_K" if at.index < at.count // 8 else None,
    "IQ4_NL": lambda at: "Q5_K" if at.index < at.count // 8 else None,
}
_VALUE: dict[str, _Rule] = {
    "Q2_K": lambda at: "Q4_K" if at.gqa >= 4 else "Q3_K",
    "Q2_K_S": lambda at: "Q4_K" if at.gqa >= 4 else None,
    "Q3_K_M": lambda at: "Q5_K" if at.index < 2 else "Q4_K",
    "Q3_K_L": lambda at: "Q5_K",
    "Q4_K_S": lambda at: "Q5_K" if at.index < 4 else None,
    "Q4_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "Q5_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "IQ4_XS": lambda at: "Q5_K" if at.gqa >= 4 else None,
    "IQ4_NL": lambda at: "Q5_K" if at.gqa >= 4 else None,
}
_OUTPUT: dict[str, _Rule] = {
    "Q2_K": lambda at: "Q3_K",
    "Q3_K_M": lambda at: "Q4_K",
    "Q3_K_L": lambda at: "Q5_K",
}


# Never quantized, as too small to matter: the short convolution of linear attention.
_TOO_SMALL = ("ssm_conv1d.weight",)

# A model of 8 experts is mostly experts: its attention is small enough to be kept at more bits.
_MIXTRAL_EXPERTS = 8
_MIXTRAL_OUTPUT = {"Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS"}


@dataclass(frozen=True, slots=True)
class _Model:
    """What the rules look at besides the tensor: ``head`` is the matrix that is the head, ``values`` the matrices of
    values in the order of their layers."""

    label: str
    n_layers: int
    gqa: int
    experts: int
    head: str
    values: Mapping[str, int]
    expert_type: str


def quantize_table(
    specs: Iterable[TensorSpec], label: str, *, n_layers: int, gqa: int = 1, experts: int = 0, expert_type: str = ""
) -> tuple[TensorInfo, ...]:
    """``specs`` with the types that a file of quantization ``label`` has.

    Args:
        n_layers: layers of the file, those that draft included.
        gqa: heads per kv head.
        expert_type: the type that the model was published with, and keeps, of its experts, but in F32.

    Raises:
        Unsupported: an unknown label.
    """
    if label not in BASE_TYPES:
        raise Unsupported(
            f"unknown quantization {label!r}",
            accepted=", ".join(BASE_TYPES),
            todo=did_you_mean(label.upper(), BASE_TYPES),
        )
    specs = tuple(specs)
    # A matrix that embeds and is the head too is treated as the head.
    head = "output.weight" if any(spec.name == "output.weight" for spec in specs) else "token_embd.weight"
    values = sorted((_layer(spec.name), spec.name) for spec in specs if spec.name.endswith(".attn_v.weight"))
    positions = {name: position for position, (_, name) in enumerate(values)}
    model = _Model(label, n_layers, gqa, experts, head, positions, expert_type)
    return tuple(TensorInfo(spec.name, spec.shape, _type(spec, model), spec.kind) for spec in specs)


def _type(spec: TensorSpec, model: _Model) -> str:
    base = BASE_TYPES[model.label]
    keeps_precision = len(spec.shape) < 2 or spec.kind in ("norms", "router") or not spec.name.endswith(".weight")
    if keeps_precision or spec.name.endswith(_TOO_SMALL):
        return "F32"
    if model.expert_type and model.label != "F32" and spec.kind == "routed experts":
        return model.expert_type
    if quant(base).is_float:
        return base
    width = spec.shape[0]
    if model.label == "MXFP4_MOE":
        return base if len(spec.shape) > 2 else "Q8_0"
    if spec.name == model.head:
        chosen = "Q8_0" if base == "Q8_0" or width % quant(base).block_elements else "Q6_K"
    else:
        chosen = _upgraded(spec.name, model) or base
    for _ in range(2):
        if width % quant(chosen).block_elements:
            chosen = _FALLBACKS.get(chosen, "F16")
    return chosen


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def _upgraded(name: str, model: _Model) -> str | None:
    match = re.match(r"blk\.(\d+)\.(\w+)\.", name)
    if match is None:
        return None
    stem, label = match[2], model.label
    if model.experts == _MIXTRAL_EXPERTS and stem in ("attn_k", "attn_v"):
        return "Q8_0"
    if model.experts == _MIXTRAL_EXPERTS and stem == "attn_output":
        return "Q5_K" if label in _MIXTRAL_OUTPUT else None
    if stem == "attn_v":
        rules, at = _VALUE, _Position(model.values[name], len(model.values), model.gqa)
    else:
        rules = _DOWN if stem.startswith("ffn_down") else _OUTPUT if stem == "attn_output" else {}
        at = _Position(int(match[1]), model.n_layers, model.gqa)
    rule = rules.get(label)
    return rule(at) if rule else None
