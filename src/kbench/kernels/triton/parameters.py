"""What rules and suites may choose of the products with GGUF's numbers, as ``block``."""

from __future__ import annotations

from kbench.core import Block, Problem

from ..block_parameters import BlockParameter
from .tile import BLOCKS, FEW_ROWS

_AUTO = "auto"
# By name, rows of activations that a program takes: what else there is of a tile follows from type and chip, so that
# none can be named that is not kept there.
_ROWS = {f"{'lanes' if rows <= FEW_ROWS else 'cores'}{rows}": rows for rows in BLOCKS}


def tile_parameters(problem: Problem | None = None) -> tuple[BlockParameter, ...]:
    """Of products; for a ``problem`` those that its rows of activations can have."""
    few = None if problem is None else problem.integer("tokens") <= FEW_ROWS
    names = (_AUTO, *(name for name, rows in _ROWS.items() if few is None or few == (rows <= FEW_ROWS)))
    return (
        BlockParameter(
            "tile", "rows of activations", _AUTO, names, 0, len(names) - 1, 1, names, ", ".join(names),
            "The fewest rows that hold all: each program reads its weights once for all rows that it takes. Up to "
            f"{FEW_ROWS} rows lanes multiply, in float32, beyond tensor cores; a tile of the other kind is not taken.",
        ),
    )  # fmt: skip


def tile_rows(block: Block | None) -> int:
    """Rows of activations that ``block`` says; 0: to be chosen."""
    return _ROWS.get(str((block or {}).get("tile", _AUTO)), 0)
