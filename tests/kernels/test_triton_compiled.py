"""Every kernel, compiled for chips that are not here: no value leaves its registers, weights come 16 bytes at a time,
tensor cores multiply, and shared memory fits the chip."""

from __future__ import annotations

import dataclasses
import importlib.util
import os

import pytest

from kbench.kernels.triton.compiled import SHARED_BYTES, compile_product
from kbench.kernels.triton.tile import KEPT_TILES, Tile, default_tile

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not os.environ.get("KBENCH_REQUIRE"),
    reason="triton is not installed",
)
# Two chips for each tile, all chips for the first and the last tile, each kind of scale and of code on one chip: a
# kernel takes some 2 s.
TILES = (KEPT_TILES[0], KEPT_TILES[2], KEPT_TILES[3], KEPT_TILES[-1])
CASES = [("Q4_K", chip, tile) for chip in (80, 90) for tile in TILES]
CASES += [("Q4_K", chip, tile) for chip in SHARED_BYTES if chip not in (80, 90) for tile in (TILES[0], TILES[-1])]
CASES += [(quant, 90, tile) for quant in ("Q4_0", "Q5_K", "Q6_K", "Q8_0", "IQ4_XS") for tile in (TILES[0], TILES[-1])]


@pytest.mark.parametrize(("quant", "capability", "tile"), CASES)
def test_machine_code(quant: str, capability: int, tile: Tile) -> None:
    found = compile_product(quant, tile, capability)
    assert found.spilled_bytes == 0 and found.count("LDL", "STL") == 0
    assert found.shared_bytes <= SHARED_BYTES[capability]
    assert found.wide_loads > 0
    assert (found.tensor_core_instructions > 0) == tile.tensor_cores


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 16, 17, 100, 512])
def test_kept_tiles_are_the_ones_that_run(m: int) -> None:
    tile = default_tile(m, 5120, 5120, 32)
    assert dataclasses.replace(tile, parts=1) in KEPT_TILES
