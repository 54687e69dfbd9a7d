"""PTX that makes 16-bit floating-point numbers of nibbles, two at a time.

``$1`` holds two words of 16 bits, ``$0`` becomes two numbers. A nibble that is or-ed into the low bits of a mantissa
counts units of that exponent: in float16, 1024 has units of 1, so that 1024 + c is or-ed together and 1032 taken away;
four bits higher c counts sixteens, which one multiply-add divides and offsets: (1024 + 16 c) / 16 - 72 = c - 8. A
bfloat16 has no room for that: it takes every nibble from the lowest four bits, onto 128. All of it is exact. ``0xea``
is the table of ``(a & b) | c`` for ``lop3``.

``tests/kernels/test_dequantize_asm.py`` runs these texts by PTX's definition of each instruction, for all words.
"""

from __future__ import annotations

# ``sub`` and ``fma`` take registers only; the assembler folds the constants back into them.
_OPEN, _CLOSE = "{{ .reg .b32 one, two; ", " }}"


def _float16(nibble: int) -> str:
    low = "lop3.b32 $0, {}, 0x000f000f, 0x64006400, 0xea; mov.b32 one, 0x64086408; sub.f16x2 $0, $0, one;"
    high = (
        "lop3.b32 $0, {}, 0x00f000f0, 0x64006400, 0xea; mov.b32 one, 0x2c002c00; mov.b32 two, 0xd480d480; "
        "fma.rn.f16x2 $0, $0, one, two;"
    )
    shift, word = ("", "$1") if nibble < 2 else ("shr.u32 $0, $1, 8; ", "$0")
    return (_OPEN + shift + (high if nibble % 2 else low) + _CLOSE).format(word)


def _bfloat16(nibble: int) -> str:
    # There is no sub.bf16x2 before compute capability 9.0: times 1, less 136.
    text = (
        "lop3.b32 $0, {}, 0x000f000f, 0x43004300, 0xea; mov.b32 one, 0x3f803f80; mov.b32 two, 0xc308c308; "
        "fma.rn.bf16x2 $0, $0, one, two;"
    )
    shift, word = (f"shr.u32 $0, $1, {4 * nibble}; ", "$0") if nibble else ("", "$1")
    return (_OPEN + shift + text + _CLOSE).format(word)


# By nibble, from the lowest.
FLOAT16 = tuple(_float16(nibble) for nibble in range(4))
BFLOAT16 = tuple(_bfloat16(nibble) for nibble in range(4))
