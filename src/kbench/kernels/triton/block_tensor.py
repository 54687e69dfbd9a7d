"""Weights that stay on a device as GGUF's blocks, and become numbers when they are asked for: every quantised type."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kbench.core import quant

from ..implementation import WeightData
from .kept_kernel import KeptKernel
from .planes import PLANE_FORMATS

if TYPE_CHECKING:
    import torch

# Types whose codes choose from a table that the gguf package has, and what it is.
_GRIDS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M")
_TABLES = {name: PLANE_FORMATS[name].table for name in ("IQ4_NL", "IQ4_XS", "MXFP4")} | {
    "NVFP4": PLANE_FORMATS["MXFP4"].table
}
BLOCK_TYPES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", *_GRIDS, *_TABLES, "TQ1_0", "TQ2_0",
)  # fmt: skip
# Weights of a program, eight a thread: a thread writes 16 bytes of 16-bit numbers at once.
_PROGRAM_WEIGHTS = 1024
_WARPS = 4
# What a product makes of a matrix at a time: large enough to keep a GPU busy, small beside what the matrix takes.
SLICE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A tensor ``shape``, in numpy's order, whose rows are stored blocks; indexing gives numbers of ``dtype``.

    Attributes:
        raw: uint8 ``[shape[0], bytes]``.
    """

    quant: str
    shape: tuple[int, ...]
    raw: torch.Tensor
    dtype: torch.dtype

    @property
    def n_bytes(self) -> int:
        return self.raw.numel()

    def __getitem__(self, index: int | slice | torch.Tensor) -> torch.Tensor:
        """Of the first dimension one, some, or those with the numbers in a tensor."""
        chosen = self.raw[index]
        lead = () if isinstance(index, int) else (len(chosen),)
        return read(chosen, self.quant, self.dtype).reshape(*lead, *self.shape[1:])

    def slices(self) -> Iterator[slice]:
        """Of the first dimension, so that no numbers take more than ``SLICE_BYTES``."""
        step = max(1, SLICE_BYTES // (math.prod(self.shape[1:]) * self.dtype.itemsize))
        return (slice(start, start + step) for start in range(0, self.shape[0], step))


def block_tensor(weight: WeightData, place: str, dtype: torch.dtype) -> BlockTensor:
    """``weight`` as it is stored, on torch device ``place``."""
    import torch

    shape = weight.shape[::-1]
    raw = np.require(weight.whole, requirements="W").reshape(shape[0], -1)
    return BlockTensor(weight.quant, shape, torch.from_numpy(raw).to(place), dtype)


def read(raw: torch.Tensor, quant_name: str, dtype: torch.dtype) -> torch.Tensor:
    """The weights in blocks ``raw``, uint8, as ``dtype``: float32's values, rounded once."""
    import torch

    from . import block_kernels  # triton compiles for a GPU, or interprets

    n_weights = raw.numel() // quant(quant_name).block_bytes * quant(quant_name).block_elements
    out = torch.empty(n_weights, dtype=dtype, device=raw.device)
    if not n_weights:
        return out
    with torch.cuda.device(raw.device) if raw.device.type == "cuda" else contextlib.nullcontext():
        block_kernels.read_blocks[(-(-n_weights // _PROGRAM_WEIGHTS),)](
            raw.contiguous(), _table(quant_name, str(raw.device)), out, n_weights, **_constants(quant_name),
            num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def kept_kernels() -> Iterator[KeptKernel]:
    """Every type, as numbers that torch multiplies on a GPU, and as an embedding's."""
    for dtype in ("bf16", "fp32"):
        for quant_name in BLOCK_TYPES:
            yield KeptKernel(
                "block_kernels.read_blocks",
                f"{quant_name} to {dtype}",
                {"raw": "*u8", "table": "*i8", "out": f"*{dtype}", "n_weights": "i32"},
                _constants(quant_name),
                _WARPS,
                multiples=("n_weights",),
                wide_loads=False,  # blocks begin at odd places
                wide_stores=True,
                fp_fusion=False,
            )


def _constants(quant_name: str) -> dict[str, object]:
    traits = quant(quant_name)
    return {
        "TYPE": quant_name, "EACH": traits.block_elements, "BYTES": traits.block_bytes, "BLOCK": _PROGRAM_WEIGHTS,
    }  # fmt: skip


@functools.lru_cache(maxsize=64)
def _table(quant_name: str, place: str) -> torch.Tensor:
    """int8 on ``place``; of a type without a table, something that is never read."""
    import torch

    values = np.array(_TABLES.get(quant_name, (0,)), dtype=np.int8)
    if quant_name in _GRIDS:
        from gguf import quants

        of_type = getattr(quants, quant_name)
        of_type.init_grid()
        values = of_type.grid.astype(np.int8).reshape(-1)
    return torch.from_numpy(values).to(place)
