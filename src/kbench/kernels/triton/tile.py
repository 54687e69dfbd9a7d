"""How a product is cut into tiles: what may be chosen, and what is chosen before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .planes import NIBBLES, PLANE_FORMATS, PlaneFormat

# Rows up to which lanes multiply in float32: tensor cores take 16 rows at a time, and waste the others.
FEW_ROWS = 4
# Programs that keep a GPU's memory busy: two for each of some 132 multiprocessors.
_WANTED_PROGRAMS = 264
# Rows of activations that tiles have.
BLOCKS = (1, 2, 4, 16, 32, 64)


def launch_options(warps: int, stages: int, registers: int) -> dict[str, int]:
    """What Triton is told at a launch. ``registers`` of a thread, or 0: as many as the compiler likes."""
    return {"num_warps": warps, "num_stages": stages, **({"maxnreg": registers} if registers else {})}


@dataclass(frozen=True, slots=True)
class Tile:
    """``block_m`` rows of activations by ``block_n`` rows of weights a program; ``parts`` programs share
    the columns. ``registers``: that a thread may have; 0: as many as the compiler likes."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    parts: int = 1
    tensor_cores: bool = False
    registers: int = 0

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told at a launch."""
        return launch_options(self.warps, self.stages, self.registers)


# Type, rows of activations, and chip -> registers of a thread.
Registers = Mapping[tuple[PlaneFormat | None, int, int], int]


def registers_of(by_name: Mapping[tuple[str, int, int], int]) -> Registers:
    """A table written by the names of types."""
    return {(PLANE_FORMATS[name], rows, chip): registers for (name, rows, chip), registers in by_name.items()}


# Where the compiler, left to itself, leaves a value without a register, which only compiling tells
# (scripts/gpu_kernels_table.py): the next step at which it leaves none.
_REGISTERS = registers_of(
    {
        ("Q4_1", 1, 80): 72,
        ("Q5_1", 1, 120): 88,
        ("Q8_0", 2, 100): 48,
        ("Q4_K", 32, 86): 144,
        ("Q4_K", 32, 89): 144,
        ("Q4_0", 32, 86): 104,
        ("Q4_0", 32, 89): 104,
        ("Q5_0", 32, 100): 144,
        ("Q5_0", 32, 120): 144,
    }
)


def default_tile(
    m: int, n: int, columns: int, width: int, fmt: PlaneFormat | None = None, capability: int = 0, rows: int = 0
) -> Tile:
    """A tile for ``m`` rows of activations that fits any chip, or the one that ``capability`` stands for: enough
    programs to keep a large GPU busy. Of ``rows`` rows, if so few or many are multiplied in the same way."""
    wanted = 1 << (m - 1).bit_length()
    block_m = wanted if m <= FEW_ROWS else max(16, min(64, wanted))
    if rows and (rows <= FEW_ROWS) == (m <= FEW_ROWS):
        block_m = rows
    tile = _tile(block_m, width, fmt, capability)
    programs = -(-n // tile.block_n) * -(-m // tile.block_m)
    chunks = columns // (NIBBLES * width)
    # Each part costs a plane of the output to write and to read again.
    return replace(tile, parts=max(1, min(8, chunks // 2, _WANTED_PROGRAMS // max(1, programs))))


def kept_tiles(width: int, fmt: PlaneFormat | None = None, capability: int = 0) -> tuple[Tile, ...]:
    """One tile for each way that ``default_tile`` cuts chunks ``width`` wide, for whoever compiles them all."""
    return tuple(_tile(block_m, width, fmt, capability) for block_m in BLOCKS)


def _tile(block_m: int, width: int, fmt: PlaneFormat | None, capability: int) -> Tile:
    if fmt is None:
        return Tile(block_m, _rows(block_m, width), 4, 3, tensor_cores=block_m > FEW_ROWS)
    # Three stages of bytes, 64 by 64, are more shared memory than chips like sm_86 have.
    stages = 2 if fmt.bits == 8 and block_m == 64 else 3
    registers = _REGISTERS.get((fmt, block_m, capability), 0)
    # And 32 rows of bytes are no 16 bytes for each of 128 threads.
    rows = 64 if fmt.bits == 8 and block_m > FEW_ROWS else _rows(block_m, width)
    return Tile(block_m, rows, 4, stages, tensor_cores=block_m > FEW_ROWS, registers=registers)


def _rows(block_m: int, width: int) -> int:
    """Of weights in a program's tile: as many as need at most 128 registers a thread, more would spill. Where lanes add
    up several rows of activations, four weights a thread, which come as 16 bytes."""
    if 1 < block_m <= FEW_ROWS:
        return 512 // width
    return 32 if block_m <= 16 else 64
