"""Triton kernels that multiply activations with planes of codes. See ``planes`` for how these lie.

Both read each word once, 16 bytes a thread, and never write a dequantised weight to memory:

``few_rows``   up to some rows: float32 multiply-adds on all lanes; bound by the memory that holds the weights.
``many_rows``  tiles of weights are rounded to float16 in registers and multiplied by tensor cores; each run of
               ``WIDTH`` columns is one product.

Constants in capitals are compiled in. ``parts`` of the columns are added up by several programs, each into its own
plane of ``out [parts, m, n]``, which the caller adds: always in the same order.

Rows of weights are ``[BLOCK_N, 1]`` throughout, never vectors: to be spread over columns, a vector would pass through
shared memory.
"""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _number(word, at: tl.constexpr, SCALE_BITS: tl.constexpr, SIGNED: tl.constexpr):
    """Number ``at`` of those of ``SCALE_BITS`` bits in ``word``, float32: float16 of 16, float32 of 32, whole ones of
    8."""
    if SCALE_BITS == 8:
        if SIGNED:
            found = ((word << (24 - 8 * at)) >> 24).to(tl.float32)
        else:
            # A whole number of up to 23 bits in the mantissa of 2^23: one instruction where a conversion is a slow one.
            found = (((word >> (8 * at)) & 255) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    elif SCALE_BITS == 16:
        found = ((word >> (16 * at)) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        found = word.to(tl.float32, bitcast=True)
    return found


@triton.jit
def _codes(
    words, high, i: tl.constexpr,
    BITS: tl.constexpr, ZERO: tl.constexpr, TABLED: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """What nibble ``i`` of ``words [rows, WIDTH]`` stands for, times 16^(i % 4), float32; with 8 bits ``words`` are
    the codes."""
    if BITS == 8:
        found = words.to(tl.float32)
    elif TABLED:
        # Bytes of four words, chosen by the code's bits: a table in memory would be read once for each weight.
        code = (words >> (4 * i)) & 15
        low = tl.where((code & 4) != 0, TABLE[1], TABLE[0])
        high_half = tl.where((code & 4) != 0, TABLE[3], TABLE[2])
        chosen = tl.where((code & 8) != 0, high_half, low) >> (8 * (code & 3))
        found = ((chosen & 255) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + 128)
    else:
        # As a whole number in the mantissa of 2^23, where it stands: neither shifted nor converted.
        at: tl.constexpr = 4 * (i % 4)
        code = (words if i < 4 else words >> 16) & (15 << at)
        if BITS == 5:
            code |= (((high >> i) & 1) << 4) << at
        if BITS == 6:
            code |= (((high >> (2 * i)) & 3) << 4) << at
        found = (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO * (1 << at))
    return found


@triton.jit
def _step(
    scales, above, at: tl.constexpr, i: tl.constexpr,
    BITS: tl.constexpr, TABLED: tl.constexpr, SCALE_BITS: tl.constexpr, SIGNED: tl.constexpr,
):  # fmt: skip
    """The scale of nibble ``i``, which is number ``at`` of the word ``scales``, over the power of two that ``_codes``
    come with; ``above``: what is above it."""
    found = _number(scales, at, SCALE_BITS, SIGNED) * above
    if BITS != 8 and not TABLED:
        found *= 1.0 / (1 << (4 * (i % 4)))
    return found


@triton.jit
def _chunk(
    words, high, super_scale, super_minimum, row_chunk, run, here, unit,
    BITS: tl.constexpr, WIDTH: tl.constexpr, MINIMUM: tl.constexpr, NESTED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """What all runs of a chunk share: its words, the bits beside them, and what is above scales and minimums, times
    ``unit``."""
    packed = tl.zeros((BLOCK_N, WIDTH), dtype=tl.int32)
    beside = tl.zeros((BLOCK_N, WIDTH), dtype=tl.int32)
    if BITS != 8:
        packed = tl.load(words + row_chunk * WIDTH + run, mask=here, other=0)
    if BITS == 5 or BITS == 6:
        beside = tl.load(high + row_chunk * WIDTH + run, mask=here, other=0).to(tl.int32)
    above = tl.full((BLOCK_N, 1), unit, tl.float32)
    above_low = above
    if NESTED:
        at = row_chunk * (8 * WIDTH) // 256
        above = tl.load(super_scale + at, mask=here, other=0).to(tl.float32) * unit
        if MINIMUM:
            above_low = tl.load(super_minimum + at, mask=here, other=0).to(tl.float32) * unit
    return packed, beside, above, above_low


@triton.jit
def _weights(
    words, scale, minimum, row_chunk, run, here, i: tl.constexpr, packed, beside, above, above_low, steps, lows,
    BITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, ZERO: tl.constexpr, MINIMUM: tl.constexpr,
    TABLED: tl.constexpr, TABLE: tl.constexpr, SCALE_BITS: tl.constexpr, SIGNED: tl.constexpr,
):  # fmt: skip
    """The weights of run ``i`` of a chunk, float32, and the words of scales and minimums that later runs read on."""
    each: tl.constexpr = 32 // SCALE_BITS  # numbers of a word of scales
    if BITS == 8:
        packed = tl.load(words + row_chunk * (8 * WIDTH) + i * WIDTH + run, mask=here, other=0)
    if i * WIDTH % (GROUP * each) == 0:
        group = row_chunk * (8 * WIDTH // GROUP // each) + i * WIDTH // (GROUP * each)
        steps = tl.load(scale + group, mask=here, other=0)
        if MINIMUM:
            lows = tl.load(minimum + group, mask=here, other=0)
    step = _step(steps, above, i * WIDTH // GROUP % each, i, BITS, TABLED, SCALE_BITS, SIGNED)
    weight = _codes(packed, beside, i, BITS, ZERO, TABLED, TABLE) * step
    if MINIMUM:
        weight -= _number(lows, i * WIDTH // GROUP % each, SCALE_BITS, SIGNED) * above_low
    return weight, steps, lows


@triton.jit
def few_rows(
    x, words, high, scale, minimum, super_scale, super_minimum, out, m, n, columns, chunks, chunks_per_part,
    BITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, ZERO: tl.constexpr, MINIMUM: tl.constexpr,
    NESTED: tl.constexpr, TABLED: tl.constexpr, TABLE: tl.constexpr, SCALE_BITS: tl.constexpr,
    SIGNED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out[part, :m] = x [m, columns] float32 @ weights [n, columns].T``: planes of whole ``chunks``, of whose columns
    ``columns`` exist. ``BLOCK_M`` is 1, 2 or 4: sums of a tile for each row stay in registers."""
    rows = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None]
    part = tl.program_id(1)
    first = tl.program_id(2) * BLOCK_M
    run = tl.arange(0, WIDTH)[None, :]
    here = rows < n
    wide_rows = rows.to(tl.int64)  # a matrix may hold more than 2^31 codes
    sum0 = tl.zeros((BLOCK_N, WIDTH), dtype=tl.float32)
    sum1, sum2, sum3 = sum0 + 0, sum0 + 0, sum0 + 0
    last = tl.minimum((part + 1) * chunks_per_part, chunks)
    # Columns of activations that exist, in rows that may not.
    columns1 = tl.where(first + 1 < m, columns, 0)
    columns2, columns3 = tl.where(first + 2 < m, columns, 0), tl.where(first + 3 < m, columns, 0)
    for chunk in range(part * chunks_per_part, last):
        row_chunk = wide_rows * chunks + chunk
        packed, beside, above, above_low = _chunk(
            words, high, super_scale, super_minimum, row_chunk, run, here, 1.0, BITS, WIDTH, MINIMUM, NESTED, BLOCK_N
        )
        steps = tl.zeros((BLOCK_N, 1), dtype=tl.int32)
        lows = tl.zeros((BLOCK_N, 1), dtype=tl.int32)
        for i in tl.static_range(8):
            weight, steps, lows = _weights(
                words, scale, minimum, row_chunk, run, here, i, packed, beside, above, above_low, steps, lows,
                BITS, GROUP, WIDTH, ZERO, MINIMUM, TABLED, TABLE, SCALE_BITS, SIGNED,
            )  # fmt: skip
            column = chunk * 8 * WIDTH + i * WIDTH + run
            of_run = x + first * columns + column
            sum0 += weight * tl.load(of_run, mask=column < columns, other=0)
            if BLOCK_M > 1:
                sum1 += weight * tl.load(of_run + columns, mask=column < columns1, other=0)
            if BLOCK_M > 2:
                sum2 += weight * tl.load(of_run + 2 * columns, mask=column < columns2, other=0)
                sum3 += weight * tl.load(of_run + 3 * columns, mask=column < columns3, other=0)
    wide = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    to = out + (part * m + first) * n + wide
    tl.store(to, tl.sum(sum0, axis=1), mask=wide < n)
    if BLOCK_M > 1:
        tl.store(to + n, tl.sum(sum1, axis=1), mask=wide < tl.where(first + 1 < m, n, 0))
    if BLOCK_M > 2:
        tl.store(to + 2 * n, tl.sum(sum2, axis=1), mask=wide < tl.where(first + 2 < m, n, 0))
        tl.store(to + 3 * n, tl.sum(sum3, axis=1), mask=wide < tl.where(first + 3 < m, n, 0))


@triton.jit
def many_rows(
    x, x_scale, words, high, scale, minimum, super_scale, super_minimum, out, m, n, columns, chunks,
    chunks_per_part, unit, inverse_unit,
    BITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, ZERO: tl.constexpr, MINIMUM: tl.constexpr,
    NESTED: tl.constexpr, TABLED: tl.constexpr, TABLE: tl.constexpr, SCALE_BITS: tl.constexpr,
    SIGNED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """As ``few_rows``, with ``x [m, columns] float16``, of which row ``t`` is to be multiplied by ``x_scale[t]``, and
    weights taken times ``unit``, a power of two that brings them into float16's range, and is taken out again."""
    rows = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None]
    part = tl.program_id(1)
    tokens = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    run = tl.arange(0, WIDTH)[None, :]
    here, tall = rows < n, tokens[:, None] < m
    wide_rows = rows.to(tl.int64)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    last = tl.minimum((part + 1) * chunks_per_part, chunks)
    for chunk in range(part * chunks_per_part, last):
        row_chunk = wide_rows * chunks + chunk
        packed, beside, above, above_low = _chunk(
            words, high, super_scale, super_minimum, row_chunk, run, here, unit, BITS, WIDTH, MINIMUM, NESTED, BLOCK_N
        )
        steps = tl.zeros((BLOCK_N, 1), dtype=tl.int32)
        lows = tl.zeros((BLOCK_N, 1), dtype=tl.int32)
        for i in tl.static_range(8):
            weight, steps, lows = _weights(
                words, scale, minimum, row_chunk, run, here, i, packed, beside, above, above_low, steps, lows,
                BITS, GROUP, WIDTH, ZERO, MINIMUM, TABLED, TABLE, SCALE_BITS, SIGNED,
            )  # fmt: skip
            column = chunk * 8 * WIDTH + i * WIDTH + run
            values = tl.load(x + tokens[:, None] * columns + column, mask=tall & (column < columns), other=0)
            total = tl.dot(values, tl.trans(weight.to(tl.float16)), total)
    total *= tl.load(x_scale + tokens, mask=tokens < m, other=0)[:, None] * inverse_unit
    wide = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    tl.store(out + (part * m + tokens[:, None]) * n + wide, total, mask=tall & (wide < n))
