"""A layer's experts in planes on a device: all of them, or those that are visited most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from kbench.core import quant

from ..expert_subset import place_table
from ..implementation import WeightData
from ..reference import dequantize
from .plane_matrix import PlaneMatrix, plane_matrix, table_words
from .planes import NIBBLES, PlaneFormat

if TYPE_CHECKING:
    import torch

_PLANES = ("words", "high", "scale", "minimum", "super_scale", "super_minimum")


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """The matrices ``[n, k]`` of one of an expert layer's three products, one slot behind the other.

    Attributes:
        planes: of all their rows.
        n: rows of one of them.
        unit: float32 ``[slots]``; see ``PlaneMatrix``.
    """

    planes: PlaneMatrix
    n: int
    unit: torch.Tensor

    @property
    def chunks(self) -> int:
        return self.planes.columns // (NIBBLES * self.planes.width)

    @property
    def format(self) -> tuple[Any, ...]:
        """What the kernels compile in, in the order of ``expert_kernels``."""
        return format_constants(self.planes.format, self.planes.width, self.planes.scale_bits)

    @property
    def n_bytes(self) -> int:
        return self.planes.n_bytes + 4 * len(self.unit)


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """What ``moe_experts`` multiplies with.

    Attributes:
        slots: int32 ``[experts]``: where an expert's matrices are, -1 if they are not here.
        biases: float32 ``[slots, rows]`` of gate, up and down; empty where there are none.
    """

    gate: ExpertStack
    up: ExpertStack
    down: ExpertStack
    slots: torch.Tensor
    biases: tuple[torch.Tensor, ...] = ()

    @property
    def n_slots(self) -> int:
        return len(self.gate.unit)

    @property
    def n_bytes(self) -> int:
        tensors = (self.slots, *self.biases)
        stacks = (self.gate, self.up, self.down)
        return sum(stack.n_bytes for stack in stacks) + sum(t.numel() * t.element_size() for t in tensors)


def format_constants(fmt: PlaneFormat, width: int, scale_bits: int) -> tuple[Any, ...]:
    """``FORMAT`` of ``expert_kernels``."""
    return (
        fmt.bits, fmt.group, width, fmt.zero, fmt.minimum, fmt.nested, bool(fmt.table), table_words(fmt.table),
        scale_bits, fmt.signed_scales,
    )  # fmt: skip


def expert_layer(weights: Sequence[WeightData], experts: int, place: str) -> ExpertLayer:
    """Gate, up and down ``[k, n, slots]`` of a layer of ``experts``, and perhaps their biases ``[rows, slots]``, on
    torch device ``place``: of all experts, or of those that the weights say.

    Raises:
        Unsupported: a type without planes.
    """
    import torch

    gate, up, down = (expert_stack(weight, place) for weight in weights[:3])
    vectors = [dequantize(weight.whole, weight.quant, weight.shape[0]).astype(np.float32) for weight in weights[3:]]
    biases = [torch.from_numpy(v.reshape(w.shape[::-1])).to(place) for v, w in zip(vectors, weights[3:], strict=True)]
    return ExpertLayer(gate, up, down, expert_slots(experts, weights[0].experts, place), tuple(biases))


def expert_slots(experts: int, resident: Sequence[int], place: str) -> torch.Tensor:
    """``ExpertLayer.slots`` where the matrices are those of ``resident`` experts, in that order; of all, where that is
    empty."""
    import torch

    return torch.from_numpy(place_table(resident or range(experts), experts)).to(place)


def expert_stack(weight: WeightData, place: str) -> ExpertStack:
    """Planes of a stack ``[k, n, count]`` on torch device ``place``; matrices are taken apart one by one, so that no
    second copy of a layer is in host memory.

    Raises:
        Unsupported: a type without planes.
    """
    import torch

    k, n, count = weight.shape
    size = quant(weight.quant).row_bytes(k) * n
    pieces = weight.parts or [weight.raw[i * size : (i + 1) * size] for i in range(count)]
    whole: dict[str, torch.Tensor] = {}
    units: list[float] = []
    scale_bits = 0
    for slot, piece in enumerate(pieces):
        one = plane_matrix(piece, weight.quant, k, "cpu")
        if not whole:
            scale_bits = one.scale_bits
            for name in _PLANES:
                plane: torch.Tensor = getattr(one, name)
                shape = (count * n, *plane.shape[1:]) if plane.dim() == 2 else plane.shape
                whole[name] = torch.zeros(shape, dtype=plane.dtype, device=place)
        parts: dict[str, torch.Tensor] = {name: getattr(one, name) for name in _PLANES}
        # Powers of two, of which some are no float16 numbers: then all of them are float32.
        if one.scale_bits > scale_bits:
            whole["scale"], scale_bits = _as_float32(whole["scale"]), one.scale_bits
        elif one.scale_bits < scale_bits:
            parts["scale"] = _as_float32(parts["scale"])
        for name, plane in parts.items():
            if plane.dim() == 2:
                whole[name][slot * n : (slot + 1) * n].copy_(plane)
        units.append(one.unit)
    options = {field.name: getattr(one, field.name) for field in fields(PlaneMatrix)}
    options |= {"n": count * n, "scale_bits": scale_bits, "unit": 1.0, **whole}
    return ExpertStack(PlaneMatrix(**options), n, torch.tensor(units, dtype=torch.float32, device=place))


def _as_float32(words: torch.Tensor) -> torch.Tensor:
    """Words of two float16 numbers as words of one float32 number each."""
    import torch

    return words.view(torch.float16).to(torch.float32).view(torch.int32)
