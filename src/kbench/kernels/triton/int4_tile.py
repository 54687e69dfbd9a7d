"""How an int4 product is cut: what may be chosen, and what is chosen where nothing was measured."""

from __future__ import annotations

from dataclasses import dataclass

from .int4_rows import CHUNK

# Programs share the columns in up to so many parts: each costs a plane of the output, to write and to read.
MAX_PARTS = 16
_PARTS = (1, 2, 3, 4, 6, 8, 12, MAX_PARTS)


@dataclass(frozen=True, slots=True)
class Int4Tile:
    """What is compiled: ``block_n`` rows of weights by ``block_m`` rows of activations a program, by ``warps``, with
    ``stages`` chunks of columns on their way. A step is one chunk of 256 columns: a line of 128 bytes of each row."""

    block_m: int
    block_n: int
    warps: int
    stages: int

    @property
    def name(self) -> str:
        return f"{self.block_m}x{self.block_n}w{self.warps}s{self.stages}"

    @property
    def scales_sums(self) -> bool:
        """Scales multiply sums of groups; else weights, where registers have no room for two sets of sums: with 64 rows
        of activations groups of 64 columns spill them on 8.6."""
        return self.block_m < 64

    @property
    def shared_bytes(self) -> int:
        """Of the chunks on their way, words and activations; one is in registers. (From 9.0 on activations are
        multiplied where they lie, and take one buffer more: those chips have room for it.)"""
        return (self.stages - 1) * (CHUNK // 2 * self.block_n + 2 * CHUNK * self.block_m)


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile, and in how many parts programs share the columns."""

    tile: Int4Tile
    parts: int


# Those whose machine code is as it should be on every chip that has the shared memory: no value in local memory,
# weights 16 bytes at a time, products by tensor cores.
KEPT_TILES = (
    Int4Tile(8, 64, 4, 4),
    Int4Tile(8, 64, 4, 6),
    Int4Tile(16, 64, 4, 4),
    Int4Tile(16, 128, 8, 4),
    Int4Tile(32, 64, 4, 3),
    Int4Tile(64, 64, 4, 2),
    Int4Tile(64, 128, 8, 2),
    Int4Tile(128, 128, 8, 2),
)
BY_NAME = {tile.name: tile for tile in KEPT_TILES}


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a choice asks of a GPU."""

    name: str
    multiprocessors: int
    shared_bytes: int


# Where there is no GPU to ask: one of the smaller data-centre GPUs.
ANY_DEVICE = DeviceLimits("", 108, 99 << 10)


def fitting(limits: DeviceLimits) -> tuple[Int4Tile, ...]:
    """Kept tiles that a device has the shared memory for."""
    return tuple(tile for tile in KEPT_TILES if tile.shared_bytes <= limits.shared_bytes)


def heuristic(m: int, n: int, chunks: int, limits: DeviceLimits = ANY_DEVICE) -> Cut:
    """What is taken where nothing was measured.

    Few rows of activations: the weights' memory is the bound, so the smallest block that holds all rows (each reads all
    weights) by 64 rows of weights, which makes the most programs. More than 64: arithmetic is, and larger blocks read
    less of both. Then parts, until every multiprocessor has two programs, while each keeps four chunks or more.
    """
    tiles = [tile for tile in fitting(limits) if tile.block_m >= m] or list(fitting(limits))
    wanted = min(tile.block_m for tile in tiles) if tiles[0].block_m >= m else max(tile.block_m for tile in tiles)
    tiles = [tile for tile in tiles if tile.block_m == wanted]
    tile = tiles[0] if m <= 64 else tiles[-1]
    programs = -(-n // tile.block_n) * -(-m // tile.block_m)
    parts = max(1, min(2 * limits.multiprocessors // programs, chunks // 4, MAX_PARTS))
    return Cut(tile, max(part for part in _PARTS if part <= parts))


def candidates(m: int, n: int, chunks: int, limits: DeviceLimits) -> tuple[Cut, ...]:
    """What is worth measuring, the heuristic's choice first: tiles that waste less than half of their rows or are the
    smallest, in parts that leave no program without a chunk and no more than eight programs to a multiprocessor."""
    first = heuristic(m, n, chunks, limits)
    tiles = [tile for tile in fitting(limits) if tile.block_m < 2 * max(m, 8)]
    if m > 64:
        tiles = [tile for tile in tiles if tile.block_m >= 32]
    found = [first]
    for tile in tiles:
        programs = -(-n // tile.block_n) * -(-m // tile.block_m)
        most = min(8 * limits.multiprocessors // programs, chunks)
        found += [Cut(tile, parts) for parts in _PARTS if parts == 1 or parts <= most]
    return tuple(dict.fromkeys(found))
