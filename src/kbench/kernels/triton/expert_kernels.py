"""Triton kernels that multiply tokens with the matrices of the experts that they were routed to.

A stack of matrices is planes (see ``planes``) of all their rows, one slot behind the other; ``unit[slot]`` is a power
of two that brings a matrix's weights into float16's range. A *pair* is a token's choice: ``token * top_k + choice``.

Few tokens: each pair multiplies its own rows, in float32 on all lanes; the bytes of the chosen experts are what it
takes. Many: pairs sorted by slot (``order_kernels``) are cut into tiles, each of one slot, for tensor cores; what is
left of a tile is all that is wasted. There gate and up are joined where they are turned into float16 for down: with
both sums of a tile a program took a third more registers (sm_90, Q4_K, 64 x 64). Grids depend on shapes alone: programs
without a tile, and pairs whose expert is not here, end at once, and nothing is written for them. ``combine`` adds up
what is here, each token's choices in order.

``FORMAT`` is ``(BITS, GROUP, WIDTH, ZERO, MINIMUM, NESTED, TABLED, TABLE, SCALE_BITS, SIGNED)`` of a stack, as
``plane_kernels`` have them; types of gate, up and down may differ.
"""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .order_kernels import slot_of
from .plane_kernels import _chunk, _weights


@triton.jit
def _joined(gate, up, alpha, limit, CLAMPED: tl.constexpr):
    """``silu(gate) * up``, or gpt-oss's clamped kind."""
    if CLAMPED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        gate = gate / (1.0 + tl.exp(-alpha * gate))
    else:
        gate = gate / (1.0 + tl.exp(-gate))
    return gate * up


@triton.jit
def _ahead(
    words, high, super_scale, super_minimum, slot, wide, n, chunk, chunks, FORMAT: tl.constexpr, BLOCK_N: tl.constexpr
):
    """``_chunk`` of rows ``wide [BLOCK_N, 1]`` of a slot's matrix; zeros behind the last one."""
    row_chunk = (slot.to(tl.int64) * n + wide) * chunks + chunk
    here = wide < tl.where(chunk < chunks, n, 0)
    return _chunk(
        words, high, super_scale, super_minimum, row_chunk, tl.arange(0, FORMAT[2])[None, :], here, 1.0,
        FORMAT[0], FORMAT[2], FORMAT[4], FORMAT[5], BLOCK_N,
    )  # fmt: skip


@triton.jit
def _add_chunk(
    total, x, words, scale, minimum, slot, wide, n, chunk, chunks, columns, packed, beside, above, above_low,
    FORMAT: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``total [BLOCK_N, WIDTH]`` and the products of a chunk that ``_ahead`` loaded with ``x [columns] float32``."""
    WIDTH: tl.constexpr = FORMAT[2]
    run = tl.arange(0, WIDTH)[None, :]
    row_chunk = (slot.to(tl.int64) * n + wide) * chunks + chunk
    steps = tl.zeros((BLOCK_N, 1), dtype=tl.int32)
    lows = tl.zeros((BLOCK_N, 1), dtype=tl.int32)
    for i in tl.static_range(8):
        weight, steps, lows = _weights(
            words, scale, minimum, row_chunk, run, wide < n, i, packed, beside, above, above_low, steps, lows,
            FORMAT[0], FORMAT[1], WIDTH, FORMAT[3], FORMAT[4], FORMAT[6], FORMAT[7], FORMAT[8], FORMAT[9],
        )  # fmt: skip
        column = chunk * 8 * WIDTH + i * WIDTH + run
        total += weight * tl.load(x + column, mask=column < columns, other=0)
    return total


@triton.jit
def _row_sums(
    x, words, high, scale, minimum, super_scale, super_minimum, slot, wide, n, columns, chunks,
    FORMAT: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``[BLOCK_N]``: rows of a slot's matrix times ``x [columns] float32``. Each chunk is asked for while the one
    before is multiplied: a program has little to do, and few of them run on a multiprocessor."""
    total = tl.zeros((BLOCK_N, FORMAT[2]), dtype=tl.float32)
    packed, beside, above, above_low = _ahead(
        words, high, super_scale, super_minimum, slot, wide, n, 0, chunks, FORMAT, BLOCK_N
    )
    for chunk in range(chunks):
        packed1, beside1, above1, above_low1 = _ahead(
            words, high, super_scale, super_minimum, slot, wide, n, chunk + 1, chunks, FORMAT, BLOCK_N
        )
        total = _add_chunk(
            total, x, words, scale, minimum, slot, wide, n, chunk, chunks, columns, packed, beside, above, above_low,
            FORMAT, BLOCK_N,
        )  # fmt: skip
        packed, beside, above, above_low = packed1, beside1, above1, above_low1
    return tl.sum(total, axis=1)


@triton.jit
def _two_row_sums(
    x, words, high, scale, minimum, super_scale, super_minimum,
    up_words, up_high, up_scale, up_minimum, up_super_scale, up_super_minimum, slot, wide, n, columns, chunks,
    FORMAT: tl.constexpr, UP: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``_row_sums`` of two matrices with equal chunks, side by side: twice as much is on its way."""
    total = tl.zeros((BLOCK_N, FORMAT[2]), dtype=tl.float32)
    up_total = total + 0
    packed, beside, above, above_low = _ahead(
        words, high, super_scale, super_minimum, slot, wide, n, 0, chunks, FORMAT, BLOCK_N
    )
    up_packed, up_beside, up_above, up_above_low = _ahead(
        up_words, up_high, up_super_scale, up_super_minimum, slot, wide, n, 0, chunks, UP, BLOCK_N
    )
    for chunk in range(chunks):
        packed1, beside1, above1, above_low1 = _ahead(
            words, high, super_scale, super_minimum, slot, wide, n, chunk + 1, chunks, FORMAT, BLOCK_N
        )
        up_packed1, up_beside1, up_above1, up_above_low1 = _ahead(
            up_words, up_high, up_super_scale, up_super_minimum, slot, wide, n, chunk + 1, chunks, UP, BLOCK_N
        )
        total = _add_chunk(
            total, x, words, scale, minimum, slot, wide, n, chunk, chunks, columns, packed, beside, above, above_low,
            FORMAT, BLOCK_N,
        )  # fmt: skip
        up_total = _add_chunk(
            up_total, x, up_words, up_scale, up_minimum, slot, wide, n, chunk, chunks, columns, up_packed, up_beside,
            up_above, up_above_low, UP, BLOCK_N,
        )  # fmt: skip
        packed, beside, above, above_low = packed1, beside1, above1, above_low1
        up_packed, up_beside, up_above, up_above_low = up_packed1, up_beside1, up_above1, up_above_low1
    return tl.sum(total, axis=1), tl.sum(up_total, axis=1)


@triton.jit
def few_gate_up(
    x, ids, slots,
    gate_words, gate_high, gate_scale, gate_minimum, gate_super_scale, gate_super_minimum, gate_bias,
    up_words, up_high, up_scale, up_minimum, up_super_scale, up_super_minimum, up_bias,
    out, experts, n, columns, gate_chunks, up_chunks, alpha, limit,
    GATE: tl.constexpr, UP: tl.constexpr, TOP_K: tl.constexpr, BIASED: tl.constexpr, CLAMPED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out [pairs, n]``: gate and up of ``x [tokens, columns] float32``, joined."""
    pair = tl.program_id(1)
    slot = slot_of(ids, slots, pair, True, experts, -1)
    if slot < 0:
        return
    wide = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = wide[:, None]
    token = x + (pair // TOP_K).to(tl.int64) * columns
    if GATE[2] == UP[2]:
        gate, up = _two_row_sums(
            token, gate_words, gate_high, gate_scale, gate_minimum, gate_super_scale, gate_super_minimum,
            up_words, up_high, up_scale, up_minimum, up_super_scale, up_super_minimum, slot, rows, n, columns,
            gate_chunks, GATE, UP, BLOCK_N,
        )  # fmt: skip
    else:
        gate = _row_sums(
            token, gate_words, gate_high, gate_scale, gate_minimum, gate_super_scale, gate_super_minimum, slot, rows,
            n, columns, gate_chunks, GATE, BLOCK_N,
        )  # fmt: skip
        up = _row_sums(
            token, up_words, up_high, up_scale, up_minimum, up_super_scale, up_super_minimum, slot, rows,
            n, columns, up_chunks, UP, BLOCK_N,
        )  # fmt: skip
    if BIASED:
        gate += tl.load(gate_bias + slot * n + wide, mask=wide < n, other=0)
        up += tl.load(up_bias + slot * n + wide, mask=wide < n, other=0)
    tl.store(out + pair.to(tl.int64) * n + wide, _joined(gate, up, alpha, limit, CLAMPED), mask=wide < n)


@triton.jit
def few_down(
    x, ids, slots, words, high, scale, minimum, super_scale, super_minimum, bias, out, experts, n, columns, chunks,
    FORMAT: tl.constexpr, BIASED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out [pairs, n]``: each row of ``x [pairs, columns] float32`` times its expert's matrix."""
    pair = tl.program_id(1)
    slot = slot_of(ids, slots, pair, True, experts, -1)
    if slot < 0:
        return
    wide = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    y = _row_sums(
        x + pair.to(tl.int64) * columns, words, high, scale, minimum, super_scale, super_minimum, slot, wide[:, None],
        n, columns, chunks, FORMAT, BLOCK_N,
    )  # fmt: skip
    if BIASED:
        y += tl.load(bias + slot * n + wide, mask=wide < n, other=0)
    tl.store(out + pair.to(tl.int64) * n + wide, y, mask=wide < n)


@triton.jit
def many_products(
    x, x_scale, order, tiles, n_tiles, words, high, scale, minimum, super_scale, super_minimum, unit, bias,
    out, bound, n, columns, chunks,
    FORMAT: tl.constexpr, TOP_K: tl.constexpr, TO_PAIRS: tl.constexpr, BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One of an expert's three products: ``out [positions, n]`` of tokens' rows ``x [tokens, columns] float16``; or,
    ``TO_PAIRS``, ``out [pairs, n]`` of ``x [positions, columns]``. Row ``t`` of ``x`` is to be multiplied by
    ``x_scale[t]``."""
    tile = tl.program_id(0)  # tiles of one slot run side by side, and share its weights in the cache
    if tile >= tl.load(n_tiles):
        return
    slot = tl.load(tiles + tile)
    position = tl.load(tiles + bound + tile) + tl.arange(0, BLOCK_M)
    there = position < tl.load(tiles + 2 * bound + tile)
    pair = tl.load(order + position, mask=there, other=0)
    if TO_PAIRS:
        row, to = position, pair
    else:
        row, to = pair // TOP_K, position
    x_rows = row.to(tl.int64)[:, None] * columns
    tall = there[:, None]
    wide = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    here = wide[:, None] < n
    wide_rows = (slot.to(tl.int64) * n + wide)[:, None]
    its_unit = tl.load(unit + slot)
    WIDTH: tl.constexpr = FORMAT[2]
    run = tl.arange(0, WIDTH)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for chunk in range(chunks):
        row_chunk = wide_rows * chunks + chunk
        packed, beside, above, above_low = _chunk(
            words, high, super_scale, super_minimum, row_chunk, run, here, its_unit,
            FORMAT[0], WIDTH, FORMAT[4], FORMAT[5], BLOCK_N,
        )  # fmt: skip
        steps = tl.zeros((BLOCK_N, 1), dtype=tl.int32)
        lows = tl.zeros((BLOCK_N, 1), dtype=tl.int32)
        for i in tl.static_range(8):
            weight, steps, lows = _weights(
                words, scale, minimum, row_chunk, run, here, i, packed, beside, above, above_low, steps, lows,
                FORMAT[0], FORMAT[1], WIDTH, FORMAT[3], FORMAT[4], FORMAT[6], FORMAT[7], FORMAT[8], FORMAT[9],
            )  # fmt: skip
            column = chunk * 8 * WIDTH + i * WIDTH + run
            values = tl.load(x + x_rows + column, mask=tall & (column < columns), other=0)
            total = tl.dot(values, tl.trans(weight.to(tl.float16)), total)
    total *= tl.load(x_scale + row, mask=there, other=0)[:, None] * (1.0 / its_unit)
    if BIASED:
        total += tl.load(bias + slot * n + wide, mask=wide < n, other=0)[None, :]
    tl.store(out + to.to(tl.int64)[:, None] * n + wide[None, :], total, mask=tall & (wide < n)[None, :])


@triton.jit
def half_rows(
    x, up, n_present, half, scale, columns, alpha, limit,
    JOINED: tl.constexpr, CLAMPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of ``x [rows, columns] float32`` as float16 times ``scale[row]``, the power of two next above the row's
    largest magnitude; with ``JOINED`` the first ``n_present`` rows of gate ``x`` and ``up``, joined."""
    row = tl.program_id(0)
    if JOINED:  # noqa: SIM102 - compiled in, the other is not
        if row >= tl.load(n_present):
            return
    at = row.to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, columns, BLOCK):
        there = first + column < columns
        values = tl.load(x + at + first + column, mask=there, other=0)
        if JOINED:
            values = _joined(values, tl.load(up + at + first + column, mask=there, other=0), alpha, limit, CLAMPED)
        largest = tl.maximum(largest, tl.abs(values))
    # The exponents of numbers, one higher; neither 2^128 nor what is left of dividing by it is a float32 that counts.
    exponent = tl.minimum((tl.max(largest, axis=0).to(tl.int32, bitcast=True) >> 23) + 1, 253)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    for first in range(0, columns, BLOCK):
        there = first + column < columns
        values = tl.load(x + at + first + column, mask=there, other=0)
        if JOINED:
            values = _joined(values, tl.load(up + at + first + column, mask=there, other=0), alpha, limit, CLAMPED)
        tl.store(half + at + first + column, (values * inverse).to(tl.float16), mask=there)
    tl.store(scale + row, (exponent << 23).to(tl.float32, bitcast=True))


@triton.jit
def combine(y, ids, slots, scores, out, experts, n, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """``out [tokens, n]``: each token's rows of ``y [pairs, n]``, weighed by ``scores [pairs]``; of experts that are
    not here, nothing."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in range(TOP_K):
        pair = token * TOP_K + choice
        present = slot_of(ids, slots, pair, True, experts, -1) >= 0
        row = tl.load(y + pair.to(tl.int64) * n + column, mask=column < tl.where(present, n, 0), other=0)
        total += tl.load(scores + pair, mask=present, other=0) * row
    tl.store(out + token.to(tl.int64) * n + column, total, mask=column < n)
