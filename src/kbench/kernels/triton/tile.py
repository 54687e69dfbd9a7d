"""How a product is cut into tiles: what may be chosen, and what is chosen before anything was measured."""

from __future__ import annotations

from dataclasses import dataclass

from .planes import NIBBLES

# Rows up to which lanes multiply in float32: tensor cores take 16 rows at a time, and waste the others.
FEW_ROWS = 4
# Programs that keep a GPU's memory busy: two for each of some 132 multiprocessors.
_WANTED_PROGRAMS = 264


@dataclass(frozen=True, slots=True)
class Tile:
    """``block_m`` rows of activations by ``block_n`` rows of weights a program; ``parts`` programs share
    the columns."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    parts: int = 1
    tensor_cores: bool = False


def default_tile(m: int, n: int, columns: int, width: int) -> Tile:
    """A tile that fits any chip, for ``m`` rows of activations: enough programs to keep a large GPU busy."""
    few = m <= FEW_ROWS
    block_m = 1 << (m - 1).bit_length() if few else max(16, min(64, 1 << (m - 1).bit_length()))
    block_n = _rows(block_m, width)
    programs = -(-n // block_n) * -(-m // block_m)
    chunks = columns // (NIBBLES * width)
    # Each part costs a plane of the output to write and to read again.
    parts = max(1, min(8, chunks // 2, _WANTED_PROGRAMS // max(1, programs)))
    return Tile(block_m, block_n, 4, 3, parts, tensor_cores=not few)


def _rows(block_m: int, width: int) -> int:
    """Of weights in a program's tile: as many as need at most 128 registers a thread, more would spill. Where lanes add
    up several rows of activations, four weights a thread, which come as 16 bytes."""
    if 1 < block_m <= FEW_ROWS:
        return 512 // width
    return 32 if block_m <= 16 else 64


def kept_tiles(width: int) -> tuple[Tile, ...]:
    """One tile for each way that ``default_tile`` cuts chunks ``width`` wide, for whoever compiles them all."""
    lanes = (Tile(block_m, _rows(block_m, width), 4, 3) for block_m in (1, 2, 4))
    cores = (Tile(block_m, _rows(block_m, width), 4, 3, tensor_cores=True) for block_m in (16, 32, 64))
    return (*lanes, *cores)
