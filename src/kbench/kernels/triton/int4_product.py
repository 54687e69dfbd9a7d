"""Activations times an int4 matrix, on the device that both are on."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .device import interpreted
from .int4_rows import CHUNK, Int4Matrix
from .int4_tile import KEPT_TILES, Cut, DeviceLimits, candidates, heuristic
from .kept_kernel import KeptKernel
from .tile_cache import TileCache, default_path
from .tile_choice import CannotRun, Measure, measured_choice, row_class, shape_class

if TYPE_CHECKING:
    import torch

# Set to ``heuristic``: nothing is measured, and nothing remembered is read.
CHOICE_VARIABLE = "KBENCH_TILES"
# Elements that one program of the small kernels takes at a time: 8 of each of 128 threads.
_ROW_BLOCK, _SUM_BLOCK = 1024, 1024


def multiply(x: torch.Tensor, matrix: Int4Matrix, cut: Cut | None = None) -> torch.Tensor:
    """``x [m, k] @ weights.T``: float32 ``[m, n]``; ``x`` is float16, bfloat16 or float32.

    Float32 rows are brought into float16's range by powers of two, and rounded to it once; sums are float32.
    ``cut`` is chosen where it is not given: see ``chosen_cut``.
    """
    import torch

    m = len(x)
    if m == 0:
        return torch.empty(0, matrix.n, dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.device) if x.device.type == "cuda" else contextlib.nullcontext():
        rows, row_scale = halved(x, matrix.k, matrix.chunks * CHUNK)
        return _launch(rows, row_scale, matrix, cut or chosen_cut(rows, row_scale, matrix))


def halved(x: torch.Tensor, k: int, columns: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ``k`` columns in a 16-bit type, filled up to ``columns`` with zeros, and what to multiply each by."""
    import torch

    from . import int4_kernels  # triton compiles for a GPU, or interprets

    m, columns = len(x), columns or k
    if x.dtype == torch.float32:
        halves = torch.empty(m, columns, dtype=torch.float16, device=x.device)
        row_scale = torch.empty(m, dtype=torch.float32, device=x.device)
        int4_kernels.halve_rows[(m,)](x.contiguous(), halves, row_scale, k, columns, BLOCK=_ROW_BLOCK)
        return halves, row_scale
    filled = x.contiguous() if k == columns else torch.nn.functional.pad(x, (0, columns - k))
    return filled, torch.ones(m, dtype=torch.float32, device=x.device)


def _launch(rows: torch.Tensor, row_scale: torch.Tensor, matrix: Int4Matrix, cut: Cut) -> torch.Tensor:
    import torch

    from . import int4_kernels

    m, n, tile = len(rows), matrix.n, cut.tile
    chunks_per_part = -(-matrix.chunks // min(cut.parts, matrix.chunks))
    parts = -(-matrix.chunks // chunks_per_part)
    out = torch.empty(parts, m, n, dtype=torch.float32, device=rows.device)
    grid = (-(-n // tile.block_n), parts, -(-m // tile.block_m))
    int4_kernels.int4_product[grid](
        rows, matrix.words, matrix.scale, row_scale, out, m, n, matrix.chunks, chunks_per_part, len(matrix.words),
        1 / matrix.unit, num_warps=tile.warps, num_stages=tile.stages,
        **product_constants(matrix.group, rows.dtype == torch.bfloat16, cut, not interpreted()),
    )  # fmt: skip
    if parts == 1:
        return out[0]
    total = torch.empty(m, n, dtype=torch.float32, device=rows.device)
    int4_kernels.add_parts[(-(-m * n // _SUM_BLOCK),)](out, total, parts, m * n, BLOCK=_SUM_BLOCK)
    return total


def product_constants(group: int, bfloat: bool, cut: Cut, asm: bool = True) -> dict[str, Any]:
    """What is compiled into ``int4_product``."""
    tile = cut.tile
    return {
        "GROUP": group, "BFLOAT": bfloat, "ASM": asm, "SUMS": tile.scales_sums,
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n,
    }  # fmt: skip


def kept_kernels() -> Iterator[KeptKernel]:
    """The product in all ways that it may be cut, and the small kernels around it."""
    for group, bfloat in ((128, False), (64, False), (128, True)):
        type_ = "bfloat16" if bfloat else "float16"
        for tile in KEPT_TILES:
            sizes = dict.fromkeys(("m", "n", "chunks", "chunks_per_part", "tiles"), "i32")
            yield KeptKernel(
                "int4_kernels.int4_product",
                f"int4 by {group}, {type_}, {tile.name}",
                {
                    "x": "*bf16" if bfloat else "*fp16", "words": "*i16", "scale": "*fp16", "row_scale": "*fp32",
                    "out": "*fp32", **sizes, "inverse_unit": "fp32",
                },
                product_constants(group, bfloat, Cut(tile, 1)), tile.warps, tile.stages,
                multiples=("n",), tensor_cores=True,
            )  # fmt: skip
    yield KeptKernel(
        "int4_kernels.halve_rows", f"rows by {_ROW_BLOCK}",
        {"x": "*fp32", "halves": "*fp16", "row_scale": "*fp32", "k": "i32", "columns": "i32"},
        {"BLOCK": _ROW_BLOCK}, 4, multiples=("k", "columns"), wide_stores=True,
    )  # fmt: skip
    yield KeptKernel(
        "int4_kernels.add_parts", f"sums by {_SUM_BLOCK}",
        {"parts": "*fp32", "out": "*fp32", "n_parts": "i32", "size": "i32"},
        {"BLOCK": _SUM_BLOCK}, 4, multiples=("size",), wide_stores=True,
    )  # fmt: skip


def chosen_cut(rows: torch.Tensor, row_scale: torch.Tensor, matrix: Int4Matrix) -> Cut:
    """The fastest on this GPU, by a measurement that is made once and kept on disk; the heuristic's without a GPU,
    where ``KBENCH_TILES=heuristic``, and while a graph is captured of shapes that were never measured."""
    import torch

    m, n, chunks = row_class(len(rows)), matrix.n, matrix.chunks
    if rows.device.type != "cuda":
        return heuristic(m, n, chunks)
    limits = _limits(rows.device.index)
    if os.environ.get(CHOICE_VARIABLE) == "heuristic":
        return heuristic(m, n, chunks, limits)
    measure: Measure | None = functools.partial(_seconds, rows, row_scale, matrix)
    if torch.cuda.is_current_stream_capturing():
        measure = None
    shape = shape_class(matrix.group, m, n, matrix.k)
    return measured_choice(shape, candidates(m, n, chunks, limits), _cache(limits.name), measure)


def _seconds(rows: torch.Tensor, row_scale: torch.Tensor, matrix: Int4Matrix, cut: Cut) -> float:
    """Median of calls that find nothing of the weights in the GPU's cache."""
    import torch
    from triton.runtime.errors import OutOfResources
    from triton.testing import do_bench

    try:
        milliseconds = do_bench(lambda: _launch(rows, row_scale, matrix, cut), warmup=5, rep=20, return_mode="median")
    except (OutOfResources, torch.OutOfMemoryError) as error:
        raise CannotRun(str(error)) from error
    return float(milliseconds) / 1e3


@functools.lru_cache(maxsize=16)
def _limits(index: int) -> DeviceLimits:
    import torch
    from triton.runtime import driver

    found = torch.cuda.get_device_properties(index)
    # What Triton itself holds a kernel against; not every torch tells it.
    shared_bytes = int(driver.active.utils.get_device_properties(index)["max_shared_mem"])
    return DeviceLimits(found.name, found.multi_processor_count, shared_bytes)


@functools.lru_cache(maxsize=16)
def _cache(device: str) -> TileCache:
    return TileCache(default_path(), device, version())


@functools.lru_cache(maxsize=1)
def version() -> str:
    """Changes with the kernels and with what may be chosen, and with the compiler."""
    import triton

    here = Path(__file__).parent
    names = ("int4_kernels.py", "dequantize_asm.py", "int4_rows.py", "int4_tile.py")
    text = b"".join((here / name).read_bytes() for name in names) + triton.__version__.encode()
    return hashlib.sha256(text).hexdigest()[:12]
