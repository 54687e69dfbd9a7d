"""Planes of codes hold exactly the numbers that the gguf package reads."""

from __future__ import annotations

import numpy as np
import pytest

from kbench.core import Unsupported
from kbench.kernels import dequantize, random_weight
from kbench.kernels.triton.planes import PLANE_FORMATS, chunk_width, pack_high, pack_words, read_codes


def numbers(quant: str, raw: np.ndarray, k: int) -> np.ndarray:
    """Planes as weights, by the formula of ``planes``."""
    fmt, found = PLANE_FORMATS[quant], read_codes(raw, quant, k)

    def spread(plane: np.ndarray, above: np.ndarray | None) -> np.ndarray:
        values = plane.astype(np.float32)
        if above is not None:
            values = np.repeat(above, 256 // fmt.group, axis=1) * values
        return np.repeat(values, fmt.group, axis=1)

    codes = found.codes.astype(np.float32)
    if fmt.table:
        codes = np.array(fmt.table, dtype=np.float32)[found.codes]
    weights = spread(found.scale, found.super_scale) * (codes - fmt.zero)
    return weights if found.minimum is None else weights - spread(found.minimum, found.super_minimum)


@pytest.mark.parametrize("quant", PLANE_FORMATS)
def test_nothing_is_rounded(quant: str) -> None:
    weight = random_weight("w", quant, (768, 5), np.random.default_rng(1))
    np.testing.assert_array_equal(numbers(quant, weight.raw, 768), dequantize(weight.raw, quant, 768))


@pytest.mark.parametrize("quant", PLANE_FORMATS)
@pytest.mark.parametrize("k", [256, 1408, 5120])
def test_a_run_of_columns_has_one_scale(quant: str, k: int) -> None:
    fmt = PLANE_FORMATS[quant]
    width = chunk_width(fmt, k)
    assert fmt.group % width == 0
    filled = -(-k // (8 * width)) * 8 * width
    assert filled - k < 128, "narrow chunks waste less"


@pytest.mark.parametrize("bits", [4, 5, 6])
def test_every_bit_of_a_code_is_kept(bits: int) -> None:
    codes = np.random.default_rng(2).integers(0, 1 << bits, (3, 256), dtype=np.uint8)
    words = pack_words(codes, 16).view(np.uint32).reshape(3, 2, 1, 16)
    low = words >> (4 * np.arange(8, dtype=np.uint32))[:, None] & 15
    high = np.zeros_like(low)
    if bits > 4:
        beside = pack_high(codes, 16, bits).astype(np.uint32).reshape(3, 2, 1, 16)
        high = beside >> ((bits - 4) * np.arange(8, dtype=np.uint32))[:, None] & ((1 << (bits - 4)) - 1)
    np.testing.assert_array_equal((low | high << 4).reshape(3, 256), codes)


def test_a_type_without_planes_is_refused() -> None:
    with pytest.raises(Unsupported, match="planes of IQ2_XXS"):
        read_codes(np.zeros(66, np.uint8), "IQ2_XXS", 256)
