"""Triton kernels for what lies between products: norms, rotations, gates, sums. Each reads its values once.

Float32 throughout, as the definitions are. Constants in capitals are compiled in; ``BLOCK``s are powers of two that
hold a whole vector, so that a vector is a program.
"""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    x, addend, weight, total, out, d, width, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_REST: tl.constexpr
):
    """``out = x / sqrt(mean(x^2) + eps) * weight`` for vectors of ``width``, of which the first ``d`` are normalised,
    and the others pass through. ``ADDS``: of ``x + addend``, which is kept in ``total``."""
    at = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    here = column < d
    values = tl.load(x + at + column, mask=here, other=0)
    if ADDS:
        values += tl.load(addend + at + column, mask=here, other=0)
        tl.store(total + at + column, values, mask=here)
    scale = 1 / tl.sqrt_rn(tl.sum(values * values, axis=0) / d + eps)
    y = values * scale * tl.load(weight + column, mask=here, other=0)
    tl.store(out + at + column, y, mask=here)
    if BLOCK_REST:
        rest = d + tl.arange(0, BLOCK_REST)
        passing = tl.load(x + at + rest, mask=rest < width, other=0)
        tl.store(out + at + rest, passing, mask=rest < width)


@triton.jit
def _turns(angle):
    """Cosine and sine of float32 ``angle``, to 2^-23. Reduced to an eighth of a turn in double precision: positions
    turn by up to millions of radians, and CUDA's own reduction of those goes through memory."""
    wide = angle.to(tl.float64)
    quarter = tl.floor(wide * 0.6366197723675814 + 0.5)  # 2 / pi
    r = (wide - quarter * 1.5707963267948966).to(tl.float32)
    turn = quarter.to(tl.int32) & 3
    # Taylor's polynomials: what they leave out is below 2^-25 up to pi / 4.
    s = r * r
    sine = r * (1 + s * (-1 / 6 + s * (1 / 120 + s * (-1 / 5040 + s / 362880))))
    cosine = 1 + s * (-1 / 2 + s * (1 / 24 + s * (-1 / 720 + s * (1 / 40320 - s / 3628800))))
    cos, sin = tl.where(turn % 2 == 1, sine, cosine), tl.where(turn % 2 == 1, cosine, sine)
    return tl.where((turn == 1) | (turn == 2), -cos, cos), tl.where(turn >= 2, -sin, sin)


@triton.jit
def rope(
    x, frequencies, positions, out, heads, width, first, factor,
    HALF: tl.constexpr, NEOX: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    """Turns ``2 HALF`` elements from ``first`` on of each of ``heads`` vectors of ``width``; the others pass through.
    Pair ``i`` of a token at position ``p`` turns by ``p * frequencies[i]`` and grows by ``factor``. Pairs are ``(i, i +
    HALF)`` with ``NEOX``, neighbours without. ``BLOCK >= HALF``, ``BLOCK_REST >= width - 2 HALF``."""
    token = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    pair = tl.arange(0, BLOCK)
    angle = tl.load(positions + token).to(tl.float32) * tl.load(frequencies + pair, mask=pair < HALF, other=0)
    cos, sin = _turns(angle)
    cos, sin = (cos * factor)[None, :], (sin * factor)[None, :]
    vector = ((token * heads + head).to(tl.int64) * width)[:, None]
    is_head = (head < heads)[:, None]
    if NEOX:
        here = is_head & (pair < HALF)[None, :]
        at = vector + first + pair[None, :]
        a, b = tl.load(x + at, mask=here, other=0), tl.load(x + at + HALF, mask=here, other=0)
        tl.store(out + at, a * cos - b * sin, mask=here)
        tl.store(out + at + HALF, b * cos + a * sin, mask=here)
    else:
        # Loaded as they lie and taken apart: loads of every other element would be half as wide.
        element = tl.arange(0, 2 * BLOCK)
        here = is_head & (element < 2 * HALF)[None, :]
        at = vector + first + element[None, :]
        a, b = tl.split(tl.reshape(tl.load(x + at, mask=here, other=0), (BLOCK_H, BLOCK, 2)))
        y = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (BLOCK_H, 2 * BLOCK))
        tl.store(out + at, y, mask=here)
    if BLOCK_REST:
        still = tl.arange(0, BLOCK_REST)
        here = is_head & (still < width - 2 * HALF)[None, :]
        at = vector + tl.where(first > 0, still, still + 2 * HALF)[None, :]
        tl.store(out + at, tl.load(x + at, mask=here, other=0), mask=here)


@triton.jit
def silu_mul(gate, up, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(gate + at, mask=at < n, other=0)
    tl.store(out + at, x * tl.sigmoid(x) * tl.load(up + at, mask=at < n, other=0), mask=at < n)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0) + tl.load(y + at, mask=at < n, other=0), mask=at < n)


@triton.jit
def gated_add(x, y, hidden, weight, out, d, BLOCK: tl.constexpr):
    """``out = x + sigmoid(hidden . weight) * y``, a vector a program."""
    at = tl.program_id(0).to(tl.int64) * d
    column = tl.arange(0, BLOCK)
    here = column < d
    product = tl.load(hidden + at + column, mask=here, other=0) * tl.load(weight + column, mask=here, other=0)
    gate = tl.sigmoid(tl.sum(product, axis=0))
    y = tl.load(x + at + column, mask=here, other=0) + gate * tl.load(y + at + column, mask=here, other=0)
    tl.store(out + at + column, y, mask=here)
