"""What ``experts`` launches, in the configurations that are kept."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from .chip import CHIPS, by_choice
from .expert_stack import format_constants
from .experts import (
    COLUMNS,
    COUNT_ROWS,
    KEPT_EXPERT_TILES,
    PAIR_BLOCK,
    PAIR_STEP,
    ExpertTile,
    gate_up_rows,
    product_tile,
)
from .kept_kernel import KeptKernel
from .planes import PLANE_FORMATS, chunk_width

# Types that quantizers give experts, and how many of the tiles for many tokens are kept of each, the last ones.
_TYPES = {"Q4_K": 3, "Q6_K": 1, "Q8_0": 1}
# Columns of a DeepSeek-V2 expert's gate and up, and of its down; a token's choices, of so many experts.
_K, _N, _TOP_K, _EXPERTS = 5120, 1536, 6, "160 experts"
_POINTERS = ("ids", "slots", "counts", "positions", "order", "tiles", "n_tiles", "n_present")
_SIZES = ("experts", "n", "columns", "bound", "pairs", "blocks", "n_slots", "chunks", "gate_chunks", "up_chunks")
_TYPES_OF = {
    **dict.fromkeys(_POINTERS, "*i32"), **dict.fromkeys(_SIZES, "i32"), **dict.fromkeys(("alpha", "limit"), "fp32"),
    **dict.fromkeys(("x", "up", "y", "scores", "x_scale", "unit", "out"), "*fp32"),
}  # fmt: skip


def kept_kernels() -> Iterator[KeptKernel]:
    """Routing, sorting, products, and sums."""
    yield from _routers()
    block, slots, sort = {"BLOCK": PAIR_BLOCK}, {"SLOTS": 256}, ("ids", "slots", "pairs", "experts", "n_slots")
    yield _kernel("order_kernels.count_pairs", _EXPERTS, (*sort, "counts"), {**block, **slots})
    places = ("counts", "tiles", "n_tiles", "n_present", "blocks", "n_slots", "bound")
    yield _kernel("order_kernels.place_slots", _EXPERTS, places, {"ROWS": COUNT_ROWS, "BLOCK_M": 64, **slots})
    lists = (*sort, "positions", "order")
    yield _kernel("order_kernels.place_pairs", _EXPERTS, lists, {**block, **slots, "STEP": PAIR_STEP})
    for quant_name, count in _TYPES.items():
        yield _few_gate_up(quant_name, KEPT_EXPERT_TILES[0])
        yield _few_down(quant_name, KEPT_EXPERT_TILES[0])
        for tile, chips in by_choice(functools.partial(_cuts, quant_name, count)).items():
            yield _many(quant_name, tile, chips)
    halves = {"half": "*fp16", "scale": "*fp32"}
    yield _kernel(
        "expert_kernels.half_rows", "gate and up", ("x", "up", "n_present", "columns", "alpha", "limit"),
        {"JOINED": True, "CLAMPED": False, "BLOCK": COLUMNS}, halves, wide_loads=True,
    )  # fmt: skip
    sums = ("y", "ids", "slots", "scores", "out", "experts", "n")
    constants = {"TOP_K": _TOP_K, "BLOCK": COLUMNS}
    yield _kernel("expert_kernels.combine", f"{_TOP_K} choices", sums, constants, wide_loads=True)


def _kernel(
    function: str,
    configuration: str,
    names: Sequence[str],
    constants: dict[str, Any],
    more: dict[str, str] | None = None,
    *,
    warps: int = 4,
    stages: int = 3,
    wide_loads: bool = False,
    tensor_cores: bool = False,
    registers: int = 0,
    chips: tuple[int, ...] = tuple(CHIPS),
) -> KeptKernel:
    """``names`` are parameters whose types ``_TYPES_OF`` has, ``more`` others, or these with other types."""
    arguments = {**{name: _TYPES_OF[name] for name in names}, **(more or {})}
    return KeptKernel(
        function, configuration, arguments, constants, warps, stages,
        multiples=tuple(name for name in ("n", "columns") if name in names), wide_loads=wide_loads,
        tensor_cores=tensor_cores, registers=registers, chips=chips,
    )  # fmt: skip


def _routers() -> Iterator[KeptKernel]:
    types = {"logits": "*fp32", "bias": "*fp32", "weights": "*fp32", "scaling": "fp32"}
    types |= dict.fromkeys(("groups", "size", "kept"), "i32")
    for configuration, grouped, groups, size in (("deepseek-v3", True, 8, 32), ("softmax of 128", False, 1, 128)):
        constants = {
            "TOP_K": 8, "SOFTMAX": not grouped, "BIASED": grouped, "NORMALISED": True, "GROUPS": groups, "SIZE": size,
            "CHOICES": 8,
        }  # fmt: skip
        yield _kernel("route_kernels.route", configuration, ("ids", "experts"), constants, types, warps=1)


def _planes(quant_name: str, prefix: str = "") -> dict[str, str]:
    bits = PLANE_FORMATS[quant_name].bits
    types = {"words": "*i8" if bits == 8 else "*i32", "high": {5: "*u8", 6: "*i16"}.get(bits, "*i32")}
    types |= {"scale": "*i32", "minimum": "*i32", "super_scale": "*fp16", "super_minimum": "*fp16", "bias": "*fp32"}
    return {f"{prefix}{name}": type_ for name, type_ in types.items()}


def _format(quant_name: str, k: int) -> tuple[Any, ...]:
    fmt = PLANE_FORMATS[quant_name]
    # MXFP4's powers of two are float16 numbers too, but for the largest and smallest: the wider case.
    return format_constants(fmt, chunk_width(fmt, k), 8 if fmt.nested else 32 if quant_name == "MXFP4" else 16)


def _few_gate_up(quant_name: str, tile: ExpertTile) -> KeptKernel:
    names = ("x", "ids", "slots", "out", "experts", "n", "columns", "gate_chunks", "up_chunks", "alpha", "limit")
    planes = {**_planes(quant_name, "gate_"), **_planes(quant_name, "up_")}
    constants = {"GATE": _format(quant_name, _K), "UP": _format(quant_name, _K), "TOP_K": _TOP_K}
    rows = gate_up_rows(tile, chunk_width(PLANE_FORMATS[quant_name], _K))
    constants |= {"BIASED": False, "CLAMPED": False, "BLOCK_N": rows}
    function, configuration = "expert_kernels.few_gate_up", f"{quant_name}, 1 x {rows}"
    return _kernel(
        function, configuration, names, constants, planes, warps=tile.warps, stages=tile.stages, wide_loads=True
    )


def _few_down(quant_name: str, tile: ExpertTile) -> KeptKernel:
    names = ("x", "ids", "slots", "out", "experts", "n", "columns", "chunks")
    constants = {"FORMAT": _format(quant_name, _N), "BIASED": False, "BLOCK_N": tile.down_n}
    function, configuration = "expert_kernels.few_down", f"{quant_name}, 1 x {tile.down_n}"
    return _kernel(
        function, configuration, names, constants, _planes(quant_name), warps=tile.warps, stages=tile.stages,
        wide_loads=True,
    )  # fmt: skip


def _cuts(quant_name: str, count: int, chip: int) -> list[ExpertTile]:
    """The last ``count`` tiles, as they cut products with matrices of a type on ``chip``."""
    return [product_tile(tile, PLANE_FORMATS[quant_name], chip) for tile in KEPT_EXPERT_TILES[-count:]]


def _many(quant_name: str, tile: ExpertTile, chips: tuple[int, ...]) -> KeptKernel:
    names = ("x_scale", "order", "tiles", "n_tiles", "unit", "out", "bound", "n", "columns", "chunks")
    constants = {"FORMAT": _format(quant_name, _K), "TOP_K": _TOP_K, "TO_PAIRS": False, "BIASED": False}
    constants |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    registers = f", {tile.registers} registers" if tile.registers else ""
    function, configuration = (
        "expert_kernels.many_products",
        f"{quant_name}, {tile.block_m} x {tile.block_n}{registers}",
    )
    return _kernel(
        function, configuration, names, constants, {"x": "*fp16", **_planes(quant_name)}, warps=tile.warps,
        stages=tile.stages, wide_loads=True, tensor_cores=True, registers=tile.registers,
        chips=chips,
    )  # fmt: skip
