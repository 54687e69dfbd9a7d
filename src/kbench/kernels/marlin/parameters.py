"""What rules and suites may choose of the int4 kernels, as ``block``."""

from __future__ import annotations

from kbench.core import Block

from ..block_parameters import BlockParameter
from ..triton.int4_rows import GROUPS
from ..triton.int4_tile import BY_NAME, KEPT_TILES, MAX_PARTS, Cut

AUTO_TILE = "auto"
_TILES = (AUTO_TILE, *(tile.name for tile in KEPT_TILES))

PARAMETERS = (
    BlockParameter(
        "group", "columns", 128, GROUPS, 64, 128, 64, (), "64, 128",
        "a scale for 128 columns takes 3 % less memory than one for 64, which is off by a twentieth less",
    ),
    BlockParameter(
        "tile", "", AUTO_TILE, _TILES, 0, 0, 1, _TILES, ", ".join(_TILES),
        "measured on the GPU when a shape is first met, and remembered",
    ),
    BlockParameter(
        "parts", "parts of the columns", 1, (1, 2, 4, 8), 1, MAX_PARTS, 1, (), f"1 to {MAX_PARTS}",
        "counts where a tile is named; else measured with the tile",
    ),
)  # fmt: skip


def group_of(block: Block | None) -> int:
    """Columns that share a scale."""
    return int((block or {}).get("group", 128))


def cut_of(block: Block | None) -> Cut | None:
    """What ``block`` says, or None: to be chosen."""
    name = str((block or {}).get("tile", AUTO_TILE))
    return None if name == AUTO_TILE else Cut(BY_NAME[name], int((block or {}).get("parts", 1)))


def marlin_packing(block: Block) -> str:
    """What decides how weights lie: where a tile is named they lie as our own kernels want them."""
    return f"marlin {group_of(block)}{'' if cut_of(block) is None else ' own'}"
