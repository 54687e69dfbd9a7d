"""Random weights in any storage type, made as fast as memory is copied."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from kbench.core import quant

from .implementation import WeightData
from .reference import dequantize

# A pool of this many random bytes is tiled over a big tensor, each time turned by a random number of blocks. Large
# enough that no two rows of a matrix in a test are alike; small enough that making it takes milliseconds.
POOL_BYTES = 1 << 20

# Where a block keeps its float16 scales: (offset of the scale, offset of the minimum's scale or None, mean of the
# quants that the scale multiplies). The minimum's scale is that mean times the scale, so that weights centre on 0.
_F16_SCALES: dict[str, tuple[int, int | None, float]] = {
    "Q4_0": (0, None, 0), "Q4_1": (0, 2, -7.5), "Q5_0": (0, None, 0), "Q5_1": (0, 2, -15.5), "Q8_0": (0, None, 0),
    "Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0), "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5), "Q6_K": (208, None, 0),
    "IQ2_XXS": (0, None, 0), "IQ2_XS": (0, None, 0), "IQ2_S": (0, None, 0), "IQ3_XXS": (0, None, 0),
    "IQ3_S": (0, None, 0), "IQ1_S": (0, None, 0), "IQ4_NL": (0, None, 0), "IQ4_XS": (0, None, 0),
    "TQ1_0": (52, None, 0), "TQ2_0": (64, None, 0),
}  # fmt: skip
_FLOATS = ("F32", "F16", "BF16", "F64")

# Types that can be made: everything that is a weight type and that the gguf package can read back.
WEIGHT_TYPES = (*_FLOATS, *_F16_SCALES, "IQ1_M", "MXFP4", "NVFP4")


def _put_f16(blocks: npt.NDArray[np.uint8], offset: int, values: npt.NDArray[np.floating]) -> None:
    blocks[:, offset : offset + 2] = values.astype(np.float16).view(np.uint8).reshape(-1, 2)


def _set_scales(blocks: npt.NDArray[np.uint8], name: str, size: float, rng: np.random.Generator) -> None:
    """Overwrites the random bytes that are scales by numbers around ``size``: 0.5 to 1.5 times it."""
    scales = size * rng.uniform(0.5, 1.5, len(blocks))
    if name in _F16_SCALES:
        at, minimum_at, mean = _F16_SCALES[name]
        _put_f16(blocks, at, scales)
        if minimum_at is not None:
            _put_f16(blocks, minimum_at, scales * mean)
    elif name == "IQ1_M":
        # The float16 scale is spread over the high nibbles of four 16-bit words at offset 48, lowest nibble first.
        words = blocks[:, 48:56].copy().view(np.uint16)
        bits = scales.astype(np.float16).view(np.uint16)
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | ((bits >> (4 * i) & 0xF) << 12)
        blocks[:, 48:56] = words.view(np.uint8)
    elif name == "MXFP4":
        # An exponent byte, 2^(e - 128) of doubled values: two neighbouring exponents.
        blocks[:, 0] = round(math.log2(size)) + 128 + rng.integers(0, 2, len(blocks))
    elif name == "NVFP4":
        # Four unsigned e4m3 scales: exponents around that of `size`, any mantissa.
        exponent = min(max(round(math.log2(size)) + 7, 1), 14)
        blocks[:, :4] = exponent << 3 | rng.integers(0, 8, (len(blocks), 4))


def _pool(name: str, std: float, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """About ``POOL_BYTES`` of random blocks of type ``name``, ``[blocks, block bytes]``."""
    traits = quant(name)
    if name in _FLOATS:
        numbers = (rng.standard_normal(POOL_BYTES // traits.block_bytes, dtype=np.float32) * std).astype(np.float32)
        if name == "BF16":
            return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1, 2)
        exact = {"F32": np.float32, "F16": np.float16, "F64": np.float64}[name]
        return numbers.astype(exact).view(np.uint8).reshape(-1, traits.block_bytes)
    blocks = rng.integers(0, 256, (POOL_BYTES // traits.block_bytes, traits.block_bytes), dtype=np.uint8)
    # The size of a weight at scale 1 is seen by dequantising, so no format's inner scales need describing here.
    sample = blocks[:512].copy()
    _set_scales(sample, name, 1.0, rng)
    size = float(np.sqrt(np.mean(np.square(dequantize(sample, name, traits.block_elements), dtype=np.float64))))
    _set_scales(blocks, name, std / size, rng)
    return blocks


@functools.lru_cache(maxsize=16)
def _shared_pool(name: str, std: float, seed: int) -> npt.NDArray[np.uint8]:
    return _pool(name, std, np.random.default_rng(seed))


def random_blocks(name: str, count: int, std: float, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """``count`` blocks of type ``name`` as uint8 ``[count * block_bytes]``; weights centre on 0 with deviation
    ``std``."""
    # Four pools per type and deviation: a benchmark's hundred matrices should not each pay for random numbers.
    pool = _shared_pool(name, std, int(rng.integers(4)))
    out = np.empty((count, pool.shape[1]), np.uint8)
    done = 0
    while done < count:
        start = int(rng.integers(len(pool)))
        for part in (pool[start:], pool[:start]):
            part = part[: count - done]
            out[done : done + len(part)] = part
            done += len(part)
    return out.reshape(-1)


def random_weight(
    name: str, quant_name: str, shape: tuple[int, ...], rng: np.random.Generator, std: float | None = None
) -> WeightData:
    """A tensor of ``shape`` (GGUF order, row length first) with finite, sane scales.

    ``std`` is by default ``1/sqrt(row length)``: outputs are then as large as inputs.

    Raises:
        Unsupported: a row is no multiple of the type's block, or the type is unknown.
    """
    traits = quant(quant_name)
    traits.row_bytes(shape[0])  # refuses a row that is no whole number of blocks
    deviation = std if std is not None else 1 / math.sqrt(shape[0])
    count = math.prod(shape) // traits.block_elements
    return WeightData(name, quant_name, shape, random_blocks(quant_name, count, deviation, rng))


def random_floats(
    shape: tuple[int, ...], rng: np.random.Generator, dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[np.floating]:
    """Standard normal numbers; beyond a pool's size they repeat at random offsets."""
    count = math.prod(shape)
    if np.dtype(dtype) == np.float32 and count <= POOL_BYTES // 4:
        return rng.standard_normal(shape, dtype=np.float32)
    name = "F16" if np.dtype(dtype) == np.float16 else "F32"
    return random_blocks(name, count, 1.0, rng).view(dtype).reshape(shape)
