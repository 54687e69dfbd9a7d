"""As ``block_kernels``, for types whose codes choose eight or four neighbouring weights at once from a ``table``."""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .stored_numbers import byte, half, nibble, signed, two


@triton.jit
def _signs(seven, e):
    """-1 where bit ``e % 8`` of a byte is set, of which bit 7 makes their number even."""
    parity = seven ^ (seven >> 4)
    parity ^= parity >> 2
    parity ^= parity >> 1
    return 1 - ((((seven | ((parity & 1) << 7)) >> (e % 8)) & 1) << 1)


@triton.jit
def _sign(at, e):
    """-1 where bit ``e`` is set."""
    return 1 - (((byte(at + e // 8) >> (e % 8)) & 1) << 1)


@triton.jit
def _signed_grid(step, table, at, sign):
    return step * signed(table + at).to(tl.float32) * sign.to(tl.float32)


@triton.jit
def iq2_xxs(at, e, table):
    of_group = at + 2 + e // 32 * 8
    # Four signs of seven bits, and a scale of four.
    word = two(of_group + 4) | (two(of_group + 6) << 16)
    step = half(at) * (0.5 + (word >> 28 & 15).to(tl.float32)) * 0.25
    sign = _signs((word >> (e % 32 // 8 * 7)) & 127, e)
    return _signed_grid(step, table, byte(of_group + e % 32 // 8) * 8 + e % 8, sign)


@triton.jit
def iq2_xs(at, e, table):
    code = two(at + 2 + e // 8 * 2)
    step = half(at) * (0.5 + nibble(at + 66, e // 16).to(tl.float32)) * 0.25
    return _signed_grid(step, table, (code & 511) * 8 + e % 8, _signs(code >> 9, e))


@triton.jit
def iq2_s(at, e, table):
    eighth = e // 8
    code = byte(at + 2 + eighth) | (((byte(at + 66 + eighth // 4) >> (eighth % 4 * 2)) & 3) << 8)
    step = half(at) * (0.5 + nibble(at + 74, e // 16).to(tl.float32)) * 0.25
    return _signed_grid(step, table, code * 8 + e % 8, _sign(at + 34, e))


@triton.jit
def iq3_xxs(at, e, table):
    scale = at + 66 + e // 32 * 4
    word = two(scale) | (two(scale + 2) << 16)
    step = half(at) * (0.5 + (word >> 28 & 15).to(tl.float32)) * 0.5
    sign = _signs((word >> (e % 32 // 8 * 7)) & 127, e)
    return _signed_grid(step, table, byte(at + 2 + e // 4) * 4 + e % 4, sign)


@triton.jit
def iq3_s(at, e, table):
    code = byte(at + 2 + e // 4) | (((byte(at + 66 + e // 32) >> (e % 32 // 4)) & 1) << 8)
    step = half(at) * (1 + 2 * nibble(at + 106, e // 32)).to(tl.float32)
    return _signed_grid(step, table, code * 4 + e % 4, _sign(at + 74, e))


@triton.jit
def _shifted_grid(step, table, at, below):
    """An eighth is added to what the table holds, or taken where ``below`` is not 0."""
    return step * (signed(table + at).to(tl.float32) + tl.where(below != 0, -0.125, 0.125))


@triton.jit
def iq1_s(at, e, table):
    high = two(at + 34 + e // 32 * 2)
    step = half(at) * (2 * (high >> 12 & 7) + 1).to(tl.float32)
    code = byte(at + 2 + e // 8) | (((high >> (e % 32 // 8 * 3)) & 7) << 8)
    return _shifted_grid(step, table, code * 8 + e % 8, high & 0x8000)


@triton.jit
def iq1_m(at, e, table):
    # A float16 number in the high nibbles of four words, whose other bits are four scales each.
    spread = byte(at + 49) >> 4 | (byte(at + 51) & 0xF0)
    spread |= (byte(at + 53) & 0xF0) << 4 | (byte(at + 55) & 0xF0) << 8
    scale = (two(at + 48 + e // 64 * 2) >> (e // 16 % 4 * 3)) & 7
    step = spread.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * (2 * scale + 1).to(tl.float32)
    high = nibble(at + 32, e // 8)
    return _shifted_grid(step, table, (byte(at + e // 8) | ((high & 7) << 8)) * 8 + e % 8, high & 8)
