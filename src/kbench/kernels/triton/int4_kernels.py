"""Triton kernels that multiply 16-bit activations with 4-bit integers. See ``int4_rows`` for how these lie.

Weights are the first factor of each product, so that rows of weights, of which there are always many, fill the rows of
a tensor core's tile, and as few as 8 rows of activations its columns. A code becomes a whole number exactly: it is
or-ed into the mantissa of 1024 (float16) or 128 (bfloat16), from which the offset is taken away, two weights an
instruction. With ``SUMS`` that is what is multiplied, and scales multiply the float32 sums of a group: nothing is
rounded, and few activations need few multiplications. Two sets of sums find no room in the registers beside 128 rows of
activations: there scales multiply weights, which rounds them to the activations' type.

``ASM`` is off where Triton interprets, which knows no machine code: then the same numbers come of plain expressions.
Constants in capitals are compiled in.
"""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .dequantize_asm import BFLOAT16, FLOAT16

_F0, _F1, _F2, _F3 = (tl.constexpr(text) for text in FLOAT16)
_B0, _B1, _B2, _B3 = (tl.constexpr(text) for text in BFLOAT16)


@triton.jit
def _run(halves, j: tl.constexpr, BFLOAT: tl.constexpr, ASM: tl.constexpr):
    """Nibble ``j`` of each 16 bits, less 8, in the activations' type."""
    if ASM:
        if BFLOAT:
            text: tl.constexpr = _B0 if j == 0 else _B1 if j == 1 else _B2 if j == 2 else _B3
            found = tl.inline_asm_elementwise(text, "=r,r", [halves], dtype=tl.bfloat16, is_pure=True, pack=2)
        else:
            text: tl.constexpr = _F0 if j == 0 else _F1 if j == 1 else _F2 if j == 2 else _F3
            found = tl.inline_asm_elementwise(text, "=r,r", [halves], dtype=tl.float16, is_pure=True, pack=2)
    else:
        code = ((halves >> (4 * j)) & 15).to(tl.float32) - 8.0
        found = code.to(tl.bfloat16 if BFLOAT else tl.float16)
    return found


@triton.jit
def int4_product(
    x, words, scale, row_scale, out, m, n, chunks, chunks_per_part, tiles, inverse_unit,
    GROUP: tl.constexpr, BFLOAT: tl.constexpr, ASM: tl.constexpr, SUMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out [part, m, n] float32 = x [m, 256 * chunks] @ weights.T`` over each part's chunks; row ``t`` of it is
    multiplied by ``row_scale[t] * inverse_unit``. What does not exist of a block is read where something does, so that
    loads need no masks, and is not stored."""
    TILE: tl.constexpr = 64
    RUN: tl.constexpr = 64
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(1)
    token = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    run = tl.arange(0, RUN)
    x_rows = x + tl.minimum(token, m - 1)[None, :].to(tl.int64) * (chunks * 256) + run[:, None]
    in_tile = (row % TILE)[:, None] * RUN + run[None, :]
    tile = tl.minimum(row // TILE, tiles - 1).to(tl.int64) * chunks
    words_rows = words + tile[:, None] * (TILE * RUN) + in_tile
    scale_rows = scale + tile * (TILE * 256 // GROUP) + row % TILE
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    first = part * chunks_per_part
    last = tl.minimum(first + chunks_per_part, chunks)
    for chunk in range(first, last):
        packed = tl.load(words_rows + chunk * (TILE * RUN))
        of_chunk = scale_rows + chunk * (TILE * 256 // GROUP)
        for group in tl.static_range(256 // GROUP):
            step = tl.load(of_chunk + group * TILE)[:, None]
            sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
            for i in tl.static_range(GROUP // RUN):
                values = tl.load(x_rows + chunk * 256 + (group * (GROUP // RUN) + i) * RUN)
                weights = _run(packed, group * (GROUP // RUN) + i, BFLOAT, ASM)
                if not SUMS:
                    weights = weights * step.to(weights.dtype)
                if not ASM:  # interpreted products of bfloat16 are those of their bits
                    weights, values = weights.to(tl.float32), values.to(tl.float32)
                if SUMS:
                    sums = tl.dot(weights, values, sums)
                else:
                    total = tl.dot(weights, values, total)
            if SUMS:
                total += sums * step.to(tl.float32)
    total *= (tl.load(row_scale + tl.minimum(token, m - 1)) * inverse_unit)[None, :]
    to = out + (part * m + token[None, :]).to(tl.int64) * n + row[:, None]
    tl.store(to, total, mask=(row[:, None] < n) & (token[None, :] < m))


@triton.jit
def halve_rows(x, halves, row_scale, k, columns, BLOCK: tl.constexpr):
    """Rows of float32 ``[m, k]`` as float16 ``[m, columns]``, divided by a power of two each, which goes to
    ``row_scale``, so that the largest is between 1 and 2; zeros behind. A program a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, k, BLOCK):
        largest = tl.maximum(largest, tl.abs(tl.load(x + row * k + start + at, mask=start + at < k, other=0)))
    # The exponent alone, within what has an inverse that is normal; a row of zeros is divided by the smallest.
    exponent = tl.max(largest, axis=0).to(tl.int32, bitcast=True) >> 23
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    tl.store(row_scale + row, (exponent << 23).to(tl.float32, bitcast=True))
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    for start in range(0, columns, BLOCK):
        value = tl.load(x + row * k + start + at, mask=start + at < k, other=0) * inverse
        tl.store(halves + row * columns + start + at, value.to(tl.float16), mask=start + at < columns)


@triton.jit
def add_parts(parts, out, n_parts, size, BLOCK: tl.constexpr):
    """``out [size]`` is the sum of ``parts [n_parts, size]``, float32, from the first to the last."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    of_part = parts + at
    total = tl.load(of_part, mask=here, other=0)
    for _ in range(1, n_parts):
        of_part += size
        total += tl.load(of_part, mask=here, other=0)
    tl.store(out + at, total, mask=here)
