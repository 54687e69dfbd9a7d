"""A quantised matrix as planes on a device, and its product with activations."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .chip import CHIPS, by_choice, chip_at
from .kept_kernel import KeptKernel
from .planes import (
    NIBBLES,
    PLANE_FORMATS,
    SUPER_BLOCK,
    Array,
    Bytes,
    PlaneFormat,
    chunk_width,
    fill_up,
    pack_high,
    pack_words,
    read_codes,
)
from .tile import Tile, default_tile, kept_tiles

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PlaneMatrix:
    """``n`` rows of ``k`` columns in planes ``columns`` wide; planes that a format has not are empty.

    Attributes:
        unit: a power of two; weights times it lie in float16's range, the largest near 1.
    """

    format: PlaneFormat
    n: int
    k: int
    columns: int
    width: int
    scale_bits: int
    words: torch.Tensor
    high: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor
    super_scale: torch.Tensor
    super_minimum: torch.Tensor
    unit: float

    @property
    def planes(self) -> tuple[torch.Tensor, ...]:
        """In the order of the kernels' parameters."""
        return (
            self.words, self.high, self.scale, self.minimum, self.super_scale, self.super_minimum,
        )  # fmt: skip

    @property
    def n_bytes(self) -> int:
        return sum(plane.numel() * plane.element_size() for plane in self.planes)


def plane_matrix(raw: Bytes, quant_name: str, k: int, place: str) -> PlaneMatrix:
    """Stored rows of ``k`` columns as planes on torch device ``place``; nothing is rounded.

    Raises:
        Unsupported: a type without planes, or rows that are no whole blocks.
    """
    import torch

    found = read_codes(raw, quant_name, k)
    fmt, n = PLANE_FORMATS[quant_name], len(found.codes)
    width = chunk_width(fmt, k)
    # Whole chunks, and whole super-blocks where scales have them.
    step = max(NIBBLES * width, SUPER_BLOCK if fmt.nested else 1)
    columns = -(-k // step) * step
    codes = fill_up(found.codes, columns)
    groups, supers = columns // fmt.group, columns // SUPER_BLOCK

    def on_device(plane: Array | None, columns: int = 0, words: bool = False) -> torch.Tensor:
        if plane is None:
            return torch.zeros(1, dtype=torch.int32, device=place)
        filled = np.ascontiguousarray(fill_up(plane, columns))
        return torch.from_numpy(filled.view(np.int32) if words else filled).to(place)

    def halves(plane: Array | None) -> Array | None:
        # Float16 numbers, but for MXFP4's powers of two, of which some are none.
        if plane is None or plane.dtype != np.float32:
            return plane
        half = plane.astype(np.float16)
        return half if np.array_equal(half, plane) else plane

    step_sizes = np.abs(found.scale.astype(np.float32)).max(initial=0)
    if found.super_scale is not None:
        step_sizes = step_sizes * np.abs(found.super_scale).max(initial=0)
    # A bound: a type that subtracts a zero reaches half of it.
    largest = float(step_sizes) * max(map(abs, fmt.table or (2**fmt.bits - 1,)))
    unit = 2.0 ** -np.ceil(np.log2(largest)) if largest > 0 and np.isfinite(largest) else 1.0
    scale = halves(found.scale)
    assert scale is not None
    return PlaneMatrix(
        fmt, n, k, columns, width, 8 * scale.itemsize,
        words=on_device(codes, columns) if fmt.bits == 8 else on_device(pack_words(codes, width), columns // 8),
        high=on_device(pack_high(codes, width, fmt.bits) if fmt.bits in (5, 6) else None, columns // 8),
        scale=on_device(scale, groups, words=True),
        minimum=on_device(halves(found.minimum), groups, words=True),
        super_scale=on_device(halves(found.super_scale), supers),
        super_minimum=on_device(halves(found.super_minimum), supers),
        unit=float(np.clip(unit, 2.0**-100, 2.0**100)),
    )  # fmt: skip


def table_words(values: tuple[int, ...]) -> tuple[int, ...]:
    """Sixteen values of a byte, plus 128 each, as four int32; zeros where there is no table."""
    values = values or (0,) * 16
    return tuple(int(word) for word in (np.array(values, dtype=np.int16) + 128).astype(np.uint8).view(np.int32))


def kernel_constants(fmt: PlaneFormat, width: int, scale_bits: int, tile: Tile) -> dict[str, Any]:
    """What is compiled into the kernels, by the names of their parameters."""
    return {
        "BITS": fmt.bits, "GROUP": fmt.group, "WIDTH": width, "ZERO": fmt.zero, "MINIMUM": fmt.minimum,
        "NESTED": fmt.nested, "TABLED": bool(fmt.table), "TABLE": table_words(fmt.table),
        "SCALE_BITS": scale_bits, "SIGNED": fmt.signed_scales, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n,
    }  # fmt: skip


def kept_kernels() -> Iterator[KeptKernel]:
    """The products of all types, cut in all ways that are kept."""
    for name, fmt in PLANE_FORMATS.items():
        width = chunk_width(fmt, 5120)
        tiles = by_choice(functools.partial(kept_tiles, width, fmt))
        for tile in sorted(tiles, key=lambda tile: (tile.block_m, tile.registers)):
            yield product_kernel(name, tile, chips=tiles[tile])


def product_kernel(quant_name: str, tile: Tile, k: int = 5120, chips: tuple[int, ...] = tuple(CHIPS)) -> KeptKernel:
    """What ``multiply`` launches for a matrix of type ``quant_name`` with rows of ``k`` columns, on ``chips``."""
    fmt = PLANE_FORMATS[quant_name]
    # MXFP4's powers of two are float16 numbers too, but for the largest and smallest: the wider case.
    scale_bits = 8 if fmt.nested else 32 if quant_name == "MXFP4" else 16
    rows = {"x": "*fp16", "x_scale": "*fp32"} if tile.tensor_cores else {"x": "*fp32"}
    sizes = dict.fromkeys(("m", "n", "columns", "chunks", "chunks_per_part"), "i32")
    registers = f", {tile.registers} registers" if tile.registers else ""
    return KeptKernel(
        "plane_kernels.many_rows" if tile.tensor_cores else "plane_kernels.few_rows",
        f"{quant_name}, {tile.block_m} x {tile.block_n}{registers}",
        {
            **rows, "words": "*i8" if fmt.bits == 8 else "*i32", "high": {5: "*u8", 6: "*i16"}.get(fmt.bits, "*i32"),
            "scale": "*i32", "minimum": "*i32", "super_scale": "*fp16", "super_minimum": "*fp16", "out": "*fp32",
            **sizes, **(dict.fromkeys(("unit", "inverse_unit"), "fp32") if tile.tensor_cores else {}),
        },
        kernel_constants(fmt, chunk_width(fmt, k), scale_bits, tile),
        tile.warps,
        tile.stages,
        multiples=("n", "columns"),
        tensor_cores=tile.tensor_cores,
        registers=tile.registers,
        chips=chips,
    )  # fmt: skip


def multiply(x: torch.Tensor, matrix: PlaneMatrix, tile: Tile | None = None, rows: int = 0) -> torch.Tensor:
    """``x [m, k] float32 @ weights.T``: float32 ``[m, n]``; by ``tile``, or what ``default_tile`` makes of ``rows``.

    Up to ``FEW_ROWS`` rows in float32 throughout; beyond, activations and weights are rounded to float16 once each, and
    added up in float32. Rows of activations are brought into float16's range by powers of two.
    """
    import torch

    from . import plane_kernels  # triton compiles for a GPU, or interprets

    m = len(x)
    tile = tile or default_tile(
        m, matrix.n, matrix.columns, matrix.width, matrix.format, chip_at(x.device), rows
    )  # fmt: skip
    chunks = matrix.columns // (NIBBLES * matrix.width)
    parts = min(tile.parts, chunks)
    chunks_per_part = -(-chunks // parts)
    out = torch.empty(parts, m, matrix.n, dtype=torch.float32, device=x.device)
    grid = (-(-matrix.n // tile.block_n), parts, -(-m // tile.block_m))
    constants = kernel_constants(matrix.format, matrix.width, matrix.scale_bits, tile)
    constants |= tile.options
    sizes = (m, matrix.n, matrix.k, chunks, chunks_per_part)
    with torch.cuda.device(x.device) if x.device.type == "cuda" else contextlib.nullcontext():
        if tile.tensor_cores:
            scale = row_scale(x)
            half = (x / scale[:, None]).to(torch.float16)
            plane_kernels.many_rows[grid](
                half, scale, *matrix.planes, out, *sizes, matrix.unit, 1 / matrix.unit, **constants
            )
        else:
            plane_kernels.few_rows[grid](x.contiguous(), *matrix.planes, out, *sizes, **constants)
    return out[0] if parts == 1 else out.sum(0)


def row_scale(x: torch.Tensor) -> torch.Tensor:
    """For each row the power of two next above its largest magnitude; 1 for rows of zeros."""
    import torch

    _, exponent = torch.frexp(x.abs().amax(dim=1))
    # 2^128 is no float32; half of it brings any row below 2, too.
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent.clamp(max=127))
