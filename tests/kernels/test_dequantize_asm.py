"""The PTX that makes numbers of nibbles, run by the definition of each instruction, for every word there is."""

from __future__ import annotations

import numpy as np
import pytest

from kbench.kernels.triton.dequantize_asm import BFLOAT16, FLOAT16

Words = np.ndarray


def halves(words: Words, bfloat: bool) -> tuple[Words, Words]:
    """The two numbers of 32 bits, exactly, low one first."""
    parts = words.astype(np.uint32) & 0xFFFF, words.astype(np.uint32) >> 16
    if bfloat:
        return tuple((part << 16).astype(np.uint32).view(np.float32).astype(np.float64) for part in parts)  # type: ignore[return-value]
    return tuple(part.astype(np.uint16).view(np.float16).astype(np.float64) for part in parts)  # type: ignore[return-value]


def whole(low: Words, high: Words, bfloat: bool) -> Words:
    """Two numbers rounded to nearest, as 32 bits; here they must need no rounding."""
    bits = []
    for part in (low, high):
        if bfloat:
            found = part.astype(np.float32).view(np.uint32)
            assert not (found & 0xFFFF).any(), "not a bfloat16"
            bits.append(found >> 16)
        else:
            half = part.astype(np.float16)
            assert (half.astype(np.float64) == part).all(), "not a float16"
            bits.append(half.view(np.uint16).astype(np.uint32))
    return (bits[0] | bits[1] << 16).astype(np.uint32)


def lop3(a: Words, b: Words, c: Words, table: int) -> Words:
    """Bit by bit, ``table``'s bit number ``4 a + 2 b + c``."""
    found = np.zeros(np.broadcast(a, b, c).shape, dtype=np.uint32)
    for number in range(8):
        if table >> number & 1:
            found |= (a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c)
    return found


def run(text: str, word: Words) -> Words:
    registers: dict[str, Words | None] = {"$1": word.astype(np.uint32), "$0": None, "one": None, "two": None}
    text = text.strip()
    assert text.startswith("{ .reg .b32 one, two; ") and text.endswith("}")

    def value(name: str) -> Words:
        found = registers[name] if name in registers else np.uint32(int(name, 0))
        assert found is not None, "read before it was written"
        return found

    for line in filter(None, (part.strip() for part in text.partition(";")[2].rstrip("}").split(";"))):
        name, _, rest = line.partition(" ")
        to, *operands = (operand.strip() for operand in rest.split(","))
        assert to in registers and to != "$1"
        if name == "mov.b32":
            found = value(operands[0])
        elif name == "shr.u32":
            found = value(operands[0]) >> value(operands[1])
        elif name == "lop3.b32":
            found = lop3(value(operands[0]), value(operands[1]), value(operands[2]), int(operands[3], 0))
        else:
            kind, _, type_ = name.rpartition(".")
            bfloat = type_ == "bf16x2"
            assert kind in ("sub", "fma.rn") and type_ in ("f16x2", "bf16x2")
            low, high = zip(*(halves(value(operand), bfloat) for operand in operands), strict=True)
            pair = [p[0] - p[1] if kind == "sub" else p[0] * p[1] + p[2] for p in (low, high)]
            found = whole(np.asarray(pair[0]), np.asarray(pair[1]), bfloat)
        registers[to] = found
    return value("$0")


@pytest.mark.parametrize("nibble", range(4))
@pytest.mark.parametrize("bfloat", [False, True])
def test_every_word(nibble: int, bfloat: bool) -> None:
    low = np.arange(1 << 16, dtype=np.uint32)
    high = np.random.default_rng(nibble).permutation(low)  # neighbours must not leak into each other
    got = halves(run((BFLOAT16 if bfloat else FLOAT16)[nibble], low | high << 16), bfloat)
    for part, word in zip(got, (low, high), strict=True):
        np.testing.assert_array_equal(part, (word >> (4 * nibble) & 15).astype(np.float64) - 8)


def test_no_instruction_is_newer_than_the_oldest_chip() -> None:
    """``sub.bf16x2`` came with compute capability 9.0."""
    assert not any("sub.bf16x2" in text for text in (*FLOAT16, *BFLOAT16))
