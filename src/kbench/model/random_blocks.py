"""Random weights in any storage type, made in chunks: random blocks whose scales give a wanted spread.

Every type's block is random bytes but for its scales: a float16 ``d``, and for types with a minimum a second one that
centres the weights on zero. Blocks of Q2_K, Q4_K and Q5_K hold small integer scales and minima besides; there each
minimum is set equal to its scale, so that ``d * sc * q - dmin * m`` with ``dmin = mean(q) * d`` has mean zero too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGMLQuantizationType

from kbench.core import Unsupported, quant

Bytes = npt.NDArray[np.uint8]

# Small against the promised GiB of memory, large against the cost of a numpy call.
CHUNK_BYTES = 8 << 20


def _nothing(blocks: Bytes) -> None:
    """The random bytes will do."""


def _minima_like_scales_k(blocks: Bytes) -> None:
    """Q4_K, Q5_K: bytes 4-15 pack eight 6-bit scales and eight 6-bit minima::

    4..7   sc0..3 (6 bits), high 2 bits of sc4..7      8..11  m0..3, high 2 bits of m4..7
    12..15 low 4 bits of sc4..7 | those of m4..7 << 4
    """
    blocks[:, 8:12] = blocks[:, 4:8]
    low = blocks[:, 12:16] & 0x0F
    blocks[:, 12:16] = low | low << 4


def _minima_like_scales_2(blocks: Bytes) -> None:
    """Q2_K: bytes 0-15 hold a 4-bit scale and, above it, a 4-bit minimum."""
    low = blocks[:, :16] & 0x0F
    blocks[:, :16] = low | low << 4


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a block's float16 fields are: ``d`` at byte ``scale``; at byte ``minimum``, ``ratio * d``.

    ``signed``: the integers' mean is not zero (-0.5 of 16), so every other block's ``d`` is negative, as in real files.
    """

    scale: int
    minimum: int | None = None
    ratio: float = 0.0
    fix: Callable[[Bytes], None] = _nothing
    signed: bool = False


_LAYOUTS = {
    "Q4_0": _Layout(0, signed=True),
    "Q4_1": _Layout(0, 2, -7.5),
    "Q5_0": _Layout(0, signed=True),
    "Q5_1": _Layout(0, 2, -15.5),
    "Q8_0": _Layout(0),
    "Q2_K": _Layout(80, 82, 1.5, _minima_like_scales_2),
    "Q3_K": _Layout(108),
    "Q4_K": _Layout(0, 2, 7.5, _minima_like_scales_k),
    "Q5_K": _Layout(0, 2, 15.5, _minima_like_scales_k),
    "Q6_K": _Layout(208),
    "IQ4_NL": _Layout(0, signed=True),
    "IQ4_XS": _Layout(0),
}


def random_bytes(type_name: str, n_elements: int, std: float, rng: np.random.Generator) -> Iterator[Bytes]:
    """``n_elements`` random weights of spread ``std`` and mean about zero, as chunks of the stored bytes.

    Raises:
        Unsupported: no recipe for the type.
    """
    traits = quant(type_name)
    if not traits.is_float and type_name not in (*_LAYOUTS, "MXFP4"):
        accepted = ", ".join(("F32", "F16", "BF16", *_LAYOUTS, "MXFP4"))
        raise Unsupported(f"no random weights of type {type_name}", accepted=accepted)
    n_blocks = n_elements // traits.block_elements
    step = CHUNK_BYTES // traits.block_bytes
    for begin in range(0, n_blocks, step):
        count = min(step, n_blocks - begin)
        if traits.is_float:
            yield _float_bytes(type_name, count, std, rng)
        elif type_name == "MXFP4":
            yield _mxfp4_blocks(count, std, rng).reshape(-1)
        else:
            yield _blocks(type_name, count, std / _unit_std(type_name), rng).reshape(-1)


def _float_bytes(type_name: str, count: int, std: float, rng: np.random.Generator) -> Bytes:
    """Uniform, not normal: three times as fast, and no outlier in 10^11 weights."""
    values = (rng.random(count, dtype=np.float32) - np.float32(0.5)) * np.float32(std * 12**0.5)
    if type_name == "BF16":
        return _as_bytes(values.view(np.uint16)[1::2])  # the upper halves
    return _as_bytes(values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[type_name]))


def _as_bytes(values: npt.NDArray[Any]) -> Bytes:
    return np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)


def _blocks(type_name: str, count: int, scale: float, rng: np.random.Generator) -> Bytes:
    """``count`` blocks ``[count, block_bytes]`` whose ``d`` lies within a quarter of ``scale``."""
    layout, n_bytes = _LAYOUTS[type_name], quant(type_name).block_bytes
    blocks: Bytes = np.frombuffer(rng.bytes(count * n_bytes), np.uint8).reshape(count, n_bytes).copy()
    layout.fix(blocks)
    d = ((0.75 + 0.5 * rng.random(count, dtype=np.float32)) * np.float32(scale)).astype("<f2")
    if layout.signed:
        d[1::2] *= -1
    blocks[:, layout.scale : layout.scale + 2] = _as_bytes(d).reshape(count, 2)
    if layout.minimum is not None:
        minimum = (d.astype(np.float32) * np.float32(layout.ratio)).astype("<f2")
        blocks[:, layout.minimum : layout.minimum + 2] = _as_bytes(minimum).reshape(count, 2)
    return blocks


# Mean square of MXFP4's sixteen values, which are 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their opposites.
_MXFP4_MEAN_SQUARE = (0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8


def _mxfp4_blocks(count: int, std: float, rng: np.random.Generator) -> Bytes:
    """Scales are powers of two: the two next to the wanted one, as many of each as give the wanted spread."""
    exponent = math.log2(std / math.sqrt(_MXFP4_MEAN_SQUARE))
    below = math.floor(exponent)
    larger = rng.random(count, dtype=np.float32) < (4 ** (exponent - below) - 1) / 3
    blocks: Bytes = np.frombuffer(rng.bytes(count * 17), np.uint8).reshape(count, 17).copy()
    blocks[:, 0] = 127 + below + larger  # biased as in float32
    return blocks


@cache
def _unit_std(type_name: str) -> float:
    """Spread of random blocks with ``d`` about 1, as the gguf package reads them; 512 blocks give it to 1 %."""
    blocks = _blocks(type_name, 512, 1.0, np.random.default_rng(0))
    values = quants.dequantize(blocks, GGMLQuantizationType[type_name])
    return float(values.astype(np.float64).std())
