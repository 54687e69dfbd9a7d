"""A Triton kernel that reads GGUF's blocks as they are stored, element by element; see ``block_tensor``.

A block of ``BYTES`` bytes holds ``EACH`` weights. ``at`` points to the first byte of an element's block, ``e`` is its
number in there. Neighbouring elements read the same bytes, which the first-level cache keeps; what counts is that each
thread writes its neighbouring weights at once. The order of bits is GGUF's specification of its blocks (ggml's
``block_*`` structures). Products and sums are rounded one by one, as the definition's are.
"""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .grid_block_kernels import iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs
from .stored_numbers import byte, half, signed


@triton.jit
def _low_high(at, e):
    """The low nibbles of sixteen bytes are the first sixteen elements, the high ones the others."""
    return (byte(at + e % 16) >> (e // 16 * 4)) & 15


@triton.jit
def _crumb(at, e):
    """Two bits: four runs of 32 elements in the same 32 bytes, twice."""
    return (byte(at + e // 128 * 32 + e % 32) >> (e % 128 // 32 * 2)) & 3


@triton.jit
def _bit(at, e):
    return (byte(at + e // 8) >> (e % 8)) & 1


@triton.jit
def _small(at, e, TYPE: tl.constexpr):
    """Q4_0, Q4_1, Q5_0, Q5_1, Q8_0."""
    step = half(at)
    if TYPE == "Q8_0":
        found = step * signed(at + 2 + e).to(tl.float32)
    elif TYPE == "Q4_0":
        found = step * (_low_high(at + 2, e) - 8).to(tl.float32)
    elif TYPE == "Q5_0":
        found = step * ((_low_high(at + 6, e) | (_bit(at + 2, e) << 4)) - 16).to(tl.float32)
    elif TYPE == "Q4_1":
        found = step * _low_high(at + 4, e).to(tl.float32) + half(at + 2)
    else:
        found = step * (_low_high(at + 8, e) | (_bit(at + 4, e) << 4)).to(tl.float32) + half(at + 2)
    return found


@triton.jit
def _q2_k(at, e):
    scale = byte(at + e // 16)
    step, low = half(at + 80) * (scale & 15).to(tl.float32), half(at + 82) * (scale >> 4).to(tl.float32)
    return step * _crumb(at + 16, e).to(tl.float32) - low


@triton.jit
def _q3_k(at, e):
    group = e // 16
    scale = (byte(at + 96 + group % 8) >> (group // 8 * 4)) & 15
    scale |= ((byte(at + 104 + group % 4) >> (group // 4 * 2)) & 3) << 4
    # A bit that is not set takes four.
    code = _crumb(at + 32, e) - 4 + (((byte(at + e % 32) >> (e // 32)) & 1) << 2)
    return half(at + 108) * (scale - 32).to(tl.float32) * code.to(tl.float32)


@triton.jit
def _q4_k(at, e, FIVE: tl.constexpr):
    """Q4_K, and Q5_K, whose fifth bits lie in 32 bytes between scales and nibbles."""
    group = e // 32
    first, second = byte(at + 4 + group % 4), byte(at + 8 + group % 4)
    third = byte(at + 12 + group % 4)
    scale = tl.where(group < 4, first & 63, (third & 15) | (first >> 6 << 4))
    low = tl.where(group < 4, second & 63, (third >> 4) | (second >> 6 << 4))
    nibbles = at + 48 if FIVE else at + 16
    code = (byte(nibbles + e // 64 * 32 + e % 32) >> (group % 2 * 4)) & 15
    if FIVE:
        code |= ((byte(at + 16 + e % 32) >> group) & 1) << 4
    return half(at) * scale.to(tl.float32) * code.to(tl.float32) - half(at + 2) * low.to(tl.float32)


@triton.jit
def _q6_k(at, e):
    of_half = e % 128
    low = (byte(at + e // 128 * 64 + e % 64) >> (of_half // 64 * 4)) & 15
    high = (byte(at + 128 + e // 128 * 32 + e % 32) >> (of_half // 32 * 2)) & 3
    scale = signed(at + 192 + e // 16)
    return half(at + 208) * scale.to(tl.float32) * ((low | (high << 4)) - 32).to(tl.float32)


@triton.jit
def _iq4_xs(at, e, table):
    group = e // 32
    scale = (byte(at + 4 + group // 2) >> (group % 2 * 4)) & 15
    scale |= ((byte(at + 2 + group // 4) >> (group % 4 * 2)) & 3) << 4
    value = signed(table + _low_high(at + 8 + group * 16, e % 32))
    return half(at) * (scale - 32).to(tl.float32) * value.to(tl.float32)


@triton.jit
def _mxfp4(at, e, table):
    exponent = byte(at)
    # 2^(exponent - 128), whose smallest two are no normal numbers.
    small = tl.where(exponent == 0, 0x00200000, 0x00400000)
    bits = tl.where(exponent < 2, small, (exponent - 1) << 23)
    return bits.to(tl.float32, bitcast=True) * signed(table + _low_high(at + 1, e)).to(tl.float32)


@triton.jit
def _nvfp4(at, e, table):
    """Sixteen elements share an unsigned e4m3 scale; the table's values are doubled."""
    scale = byte(at + e // 16)
    exponent, mantissa = scale >> 3 & 15, (scale & 7).to(tl.float32)
    power = ((exponent + 120) << 23).to(tl.float32, bitcast=True)
    step = tl.where(exponent == 0, mantissa * 0.001953125, (1.0 + mantissa / 8) * power) * 0.5
    step = tl.where((scale == 0) | (scale == 127), 0.0, step)
    code = (byte(at + 4 + e // 16 * 8 + e % 8) >> (e % 16 // 8 * 4)) & 15
    return step * signed(table + code).to(tl.float32)


@triton.jit
def _tq1_0(at, e):
    """Five elements of three values in a byte, as a fraction of 256: 32 bytes, then 16; four in each of the last 4."""
    where = tl.where(e < 160, e % 32, tl.where(e < 240, 32 + e % 16, 48 + e % 4))
    digit = tl.where(e < 160, e // 32, tl.where(e < 240, (e - 160) // 16, (e - 240) // 4))
    power = tl.where(digit == 0, 1, tl.where(digit == 1, 3, tl.where(digit == 2, 9, tl.where(digit == 3, 27, 81))))
    code = ((byte(at + where) * power) & 255) * 3 >> 8
    return half(at + 52) * (code - 1).to(tl.float32)


@triton.jit
def read_blocks(
    raw, table, out, n_weights,
    TYPE: tl.constexpr, EACH: tl.constexpr, BYTES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``out [n_weights]``: the weights in ``raw``, uint8. ``table``: what codes of a type with one stand for, int8.
    ``BLOCK`` weights a program, whole blocks."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = tl.arange(0, BLOCK)
    here = i < n_weights - first
    # What is behind the end reads the last block of the program that exists: nothing is read outside.
    last = tl.minimum(n_weights - first, BLOCK).to(tl.int32) - 1
    inside = tl.minimum(i, last)
    at = raw + first // EACH * BYTES + inside // EACH * BYTES
    e = inside % EACH
    if TYPE == "Q2_K":
        found = _q2_k(at, e)
    elif TYPE == "Q3_K":
        found = _q3_k(at, e)
    elif TYPE == "Q4_K":
        found = _q4_k(at, e, False)
    elif TYPE == "Q5_K":
        found = _q4_k(at, e, True)
    elif TYPE == "Q6_K":
        found = _q6_k(at, e)
    elif TYPE == "IQ4_NL":
        found = half(at) * signed(table + _low_high(at + 2, e)).to(tl.float32)
    elif TYPE == "IQ4_XS":
        found = _iq4_xs(at, e, table)
    elif TYPE == "MXFP4":
        found = _mxfp4(at, e, table)
    elif TYPE == "NVFP4":
        found = _nvfp4(at, e, table)
    elif TYPE == "TQ1_0":
        found = _tq1_0(at, e)
    elif TYPE == "TQ2_0":
        found = half(at + 64) * (_crumb(at, e) - 1).to(tl.float32)
    elif TYPE == "IQ2_XXS":
        found = iq2_xxs(at, e, table)
    elif TYPE == "IQ2_XS":
        found = iq2_xs(at, e, table)
    elif TYPE == "IQ2_S":
        found = iq2_s(at, e, table)
    elif TYPE == "IQ3_XXS":
        found = iq3_xxs(at, e, table)
    elif TYPE == "IQ3_S":
        found = iq3_s(at, e, table)
    elif TYPE == "IQ1_S":
        found = iq1_s(at, e, table)
    elif TYPE == "IQ1_M":
        found = iq1_m(at, e, table)
    else:
        found = _small(at, e, TYPE)
    tl.store(out + first + i, found.to(out.dtype.element_ty), mask=here)
