"""Where every tensor of a model lies, by phase, and what multiplies by it: KTransformers' ``tensor_device_map``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kbench.core import Device, Module, Phase, Placement, TensorInfo

from .gpu_experts import n_experts_of
from .match import place
from .schema import RuleSet

# The module that reads the embedding's matrix where it has none of its own.
_HEAD, _EMBEDDING = "lm_head", "token_embd.weight"
_PHASES = (Phase.DECODE, Phase.PREFILL)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """What of a tensor is on ``device``, for ``implementation``; a layer's experts may be on two."""

    device: Device
    implementation: str
    n_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {"device": str(self.device), "implementation": self.implementation, "bytes": self.n_bytes}


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor as the module ``module`` uses it; ``line`` is the rule's, None where no rule matched."""

    tensor: TensorInfo
    module: str
    line: int | None
    places: dict[Phase, tuple[TensorPlace, ...]]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "tensor": self.tensor.name,
            "quant": self.tensor.quant,
            "shape": list(self.tensor.shape),
            "bytes": self.tensor.n_bytes,
            "module": self.module,
            "line": self.line,
            **{str(phase): [one.as_dict() for one in places] for phase, places in self.places.items()},
        }


def tensor_map(rules: RuleSet, tree: Module, default: Placement | None = None) -> list[TensorRow]:
    """One row per tensor, in the modules' order; two for an embedding that the head multiplies by, too.

    Raises:
        UserError: the rules have errors.
    """
    matched, placer = place(rules, tree, default)
    embedding = tuple(t for module in tree.walk() for t in module.tensors if t.name == _EMBEDDING)
    rows = []
    for found in matched:
        module, placement = found.module, placer.placement(found)
        tensors = module.tensors or (embedding if module.name == _HEAD else ())
        for tensor in tensors:
            places = {
                phase: tuple(_places(module, tensor, placement, phase)) for phase in (Phase.DECODE, Phase.PREFILL)
            }
            rows.append(TensorRow(tensor, module.name, found.rule.line if found.rule else None, places))
    return rows


def _places(module: Module, tensor: TensorInfo, placement: Placement, phase: Phase) -> Iterator[TensorPlace]:
    part, n_experts = placement.gpu_experts, n_experts_of(module)
    n_bytes = tensor.n_bytes // n_experts * len(part.experts) if part is not None and n_experts else 0
    yield TensorPlace(placement.device(phase), placement.implementation(phase), tensor.n_bytes - n_bytes)
    if part is not None and n_bytes:
        yield TensorPlace(part.device, part.op, n_bytes)
