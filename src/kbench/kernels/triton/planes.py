"""Quantised rows taken apart into planes that a GPU reads in whole 16-byte loads; nothing is rounded anew.

GGUF's blocks have odd sizes (18, 34, 144, 210 bytes), so that neighbouring threads' loads are not aligned. Here every
kind of number has a plane of its own. Columns are taken in chunks of ``8 * width``; in a chunk, nibble ``i`` of word
``w`` belongs to column ``i * width + w``, so that one register of words is the low bits of eight runs of ``width``
columns, and each run lies within one group, which has one scale::

    words   int32  [n, k/8]       chunk c: words  c*width .. +width;  bits 4i .. 4i+3: the low bits of the code
    high    uint8  [n, k/8]       5 bits: bit i is bit 4 of the code of nibble i
            int16  [n, k/8]       6 bits: bits 2i, 2i+1 are bits 4, 5
    bytes   int8   [n, k]         8 bits, in place of words: the codes themselves, in order
    scale   float16 [n, k/group]  or, under a super-block's scale: int8 [n, k/group] and float16 [n, k/256]
    minimum float16 [n, k/group]  or                               uint8 [n, k/group] and float16 [n, k/256]

    weight = scale * (code - zero) - minimum        or        scale * table[code]

Rows are filled up to whole chunks with scales of zero. Where the codes of a type are said to be, is GGUF's
specification of its blocks (ggml's ``block_*`` structures).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbench.core import Unsupported, quant

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[np.generic]

SUPER_BLOCK = 256
NIBBLES = 8  # in a word
# The sixteen values of a code, of types that have a table: IQ4_NL's and IQ4_XS's, and MXFP4's doubled e2m1 numbers.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, slots=True)
class PlaneFormat:
    """How codes of a type become weights.

    Attributes:
        bits: of a code: 4, 5, 6 or 8.
        group: columns that share a scale.
        zero: subtracted from a code.
        table: what codes stand for, where that is not themselves.
    """

    bits: int
    group: int
    zero: int = 0
    minimum: bool = False
    nested: bool = False  # scales under a super-block's scale
    table: tuple[int, ...] = ()

    @property
    def signed_scales(self) -> bool:
        """Of nested scales, those without minimums have a sign."""
        return self.nested and not self.minimum

    @property
    def bits_per_weight(self) -> float:
        """Of all planes together, without what fills rows up."""
        parts = 2 if self.minimum else 1
        scales = parts * (8 / self.group + 16 / SUPER_BLOCK if self.nested else 16 / self.group)
        return self.bits + scales


PLANE_FORMATS = {
    "Q4_0": PlaneFormat(4, 32, 8),
    "Q4_1": PlaneFormat(4, 32, minimum=True),
    "Q5_0": PlaneFormat(5, 32, 16),
    "Q5_1": PlaneFormat(5, 32, minimum=True),
    "Q8_0": PlaneFormat(8, 32),
    "Q4_K": PlaneFormat(4, 32, minimum=True, nested=True),
    "Q5_K": PlaneFormat(5, 32, minimum=True, nested=True),
    "Q6_K": PlaneFormat(6, 16, 32, nested=True),
    "IQ4_NL": PlaneFormat(4, 32, table=_IQ4),
    "IQ4_XS": PlaneFormat(4, 32, nested=True, table=_IQ4),
    "MXFP4": PlaneFormat(4, 32, table=_E2M1),
}


@dataclass(frozen=True, slots=True)
class Codes:
    """Numbers of stored rows: ``codes`` uint8 (int8 with 8 bits) ``[n, k]``, the others by group; ``super_*`` by
    super-block, where the type nests scales. Float32 scales are float16 numbers, or powers of two."""

    codes: Array
    scale: Array
    minimum: Array | None = None
    super_scale: Array | None = None
    super_minimum: Array | None = None


def _halves(blocks: Bytes, at: int) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(low: Bytes) -> Bytes:
    """The low nibbles of a run of bytes, then the high ones: ``[..., b]`` -> ``[..., 2 b]``."""
    return np.concatenate([low & 15, low >> 4], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Bit ``j`` of four bytes belongs to column ``j`` of 32."""
    return (np.unpackbits(packed, axis=-1, bitorder="little") << 4).astype(np.uint8)


def _q4_0(blocks: Bytes) -> Codes:
    return Codes(_nibbles(blocks[:, 2:]), _halves(blocks, 0))


def _q4_1(blocks: Bytes) -> Codes:
    return Codes(_nibbles(blocks[:, 4:]), _halves(blocks, 0), -_halves(blocks, 2))


def _q5_0(blocks: Bytes) -> Codes:
    return Codes(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), _halves(blocks, 0))


def _q5_1(blocks: Bytes) -> Codes:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return Codes(codes, _halves(blocks, 0), -_halves(blocks, 2))


def _q8_0(blocks: Bytes) -> Codes:
    return Codes(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _halves(blocks, 0))


def _six_bit_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minimums of six bits in twelve bytes: the first four of each lie whole in bytes 0-3 and
    4-7; of the last four the low nibbles share bytes 8-11, and the top two bits are those of the first eight bytes."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minimum = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scale, minimum


def _q4_k(blocks: Bytes) -> Codes:
    scale, minimum = _six_bit_scales(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, SUPER_BLOCK)
    return Codes(codes, scale, minimum, _halves(blocks, 0), _halves(blocks, 2))


def _q5_k(blocks: Bytes) -> Codes:
    scale, minimum = _six_bit_scales(blocks[:, 4:16])
    # Bit b of byte j is the fifth bit of column j of block b.
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | fifth
    return Codes(codes.reshape(-1, SUPER_BLOCK), scale, minimum, _halves(blocks, 0), _halves(blocks, 2))


def _q6_k(blocks: Bytes) -> Codes:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 8, 32)
    scale = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return Codes((low | high << 4).reshape(-1, SUPER_BLOCK), scale, None, _halves(blocks, 208))


def _iq4_xs(blocks: Bytes) -> Codes:
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    scale = (low | high.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, SUPER_BLOCK)
    return Codes(codes, scale, None, _halves(blocks, 0))


def _mxfp4(blocks: Bytes) -> Codes:
    # The values of the table are doubled: half of 2^(e - 127).
    return Codes(_nibbles(blocks[:, 1:]), np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128))


_READERS: dict[str, Callable[[Bytes], Codes]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k,
    "Q6_K": _q6_k, "IQ4_NL": _q4_0, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4,
}  # fmt: skip


def read_codes(raw: Bytes, quant_name: str, k: int) -> Codes:
    """The numbers of stored rows of ``k`` columns, each plane ``[n, ...]``; ``raw`` is uint8 of any shape.

    Raises:
        Unsupported: a type without planes, or rows that are no whole blocks.
    """
    if quant_name not in PLANE_FORMATS:
        raise Unsupported(f"planes of {quant_name}", accepted=", ".join(PLANE_FORMATS))
    traits = quant(quant_name)
    rows = np.ascontiguousarray(raw).reshape(-1, traits.row_bytes(k))
    found = _READERS[quant_name](rows.reshape(-1, traits.block_bytes))

    def by_row(plane: Array | None) -> Array | None:
        return None if plane is None else plane.reshape(len(rows), -1)

    codes, scale = found.codes.reshape(len(rows), k), found.scale.reshape(len(rows), -1)
    return Codes(codes, scale, by_row(found.minimum), by_row(found.super_scale), by_row(found.super_minimum))


def chunk_width(fmt: PlaneFormat, k: int) -> int:
    """Words of a chunk in a row. A run of columns lies in one group, and is no longer than 32: its products' sums are
    scaled at once. Narrow chunks, where they fill up fewer columns."""
    wide, narrow = min(32, fmt.group), 16
    return wide if -(-k // (NIBBLES * wide)) * wide <= -(-k // (NIBBLES * narrow)) * narrow else narrow


def pack_words(codes: Array, width: int) -> npt.NDArray[np.int32]:
    """The low four bits of ``codes [n, k]``, ``k`` whole chunks, as words ``[n, k / 8]``."""
    runs = codes.reshape(len(codes), -1, NIBBLES, width).astype(np.uint32) & 15
    words = np.zeros((len(codes), runs.shape[1], width), dtype=np.uint32)
    for i in range(NIBBLES):
        words |= runs[:, :, i] << np.uint32(4 * i)
    return words.reshape(len(codes), -1).view(np.int32)


def pack_high(codes: Array, width: int, bits: int) -> Array:
    """The bits above the fourth, one number beside each word: ``[n, k / 8]``, uint8 of 5 bits, int16 of 6."""
    runs = codes.reshape(len(codes), -1, NIBBLES, width).astype(np.uint16) >> 4
    each = bits - 4
    packed = np.zeros((len(codes), runs.shape[1], width), dtype=np.uint16)
    for i in range(NIBBLES):
        packed |= runs[:, :, i] << np.uint16(each * i)
    flat = packed.reshape(len(codes), -1)
    return flat.astype(np.uint8) if each == 1 else flat.view(np.int16)


def fill_up(plane: Array, columns: int) -> Array:
    """``plane [n, m]`` with zeros behind, ``columns`` wide."""
    return np.pad(plane, ((0, 0), (0, columns - plane.shape[1])))
