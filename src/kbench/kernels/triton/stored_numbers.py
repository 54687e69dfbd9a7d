"""Numbers in bytes that lie anywhere: what kernels over GGUF's blocks are made of. ``at``: pointers to uint8."""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def byte(at):
    return tl.load(at).to(tl.int32)


@triton.jit
def signed(at):
    return tl.load(at).to(tl.int8, bitcast=True).to(tl.int32)


@triton.jit
def two(at):
    """Two bytes, the low one first."""
    return byte(at) | (byte(at + 1) << 8)


@triton.jit
def half(at):
    """A float16 number."""
    return two(at).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def nibble(at, group):
    """Nibble ``group``."""
    return (byte(at + group // 2) >> (group % 2 * 4)) & 15
