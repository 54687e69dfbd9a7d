"""Reads the header of a GGUF file without trusting a byte of it.

Layout (little-endian)::

    "GGUF"  u32 version  i64 n_tensors  i64 n_kv
    n_kv      x  { string key, u32 type, value }                           string = u64 length, bytes
    n_tensors x  { string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset }
    padding to general.alignment, then the tensors' data

The gguf package's reader is not used for this walk: it builds several numpy objects for each of the 10^5 strings of a
vocabulary (5 s on a file that this walk reads in 0.1 s), and on a damaged file it fails somewhere inside numpy. Its
constants are.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUF_MAGIC, GGUFValueType, Keys

from kbench.core import QUANTS_BY_ID, REMOVED_QUANT_IDS, CorruptFile, QuantTraits

VERSIONS = (2, 3)
# ggml's own limits (GGML_MAX_NAME with its terminator, GGML_MAX_DIMS).
MAX_NAME_BYTES = 63
MAX_DIMS = 4
# A vocabulary has some 10^5 entries; the largest array seen in the wild is a few 10^6 bytes (a unigram charsmap).
MAX_ARRAY_ELEMENTS = 1 << 24
# Every known writer uses 32; a page-aligned file would use 4096.
MAX_ALIGNMENT = 1 << 20
# Keys are like "tokenizer.ggml.tokens"; the format's own limit is 2^16 - 1.
MAX_KEY_BYTES = (1 << 16) - 1

_MIN_KV_BYTES = 8 + 1 + 4 + 1  # length, a one-letter key, type, a one-byte value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, a one-letter name, n_dims, one dimension, type, offset

_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "<u1",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A line of the tensor table; ``begin`` counts from the start of the file. All checked against its size."""

    name: str
    shape: tuple[int, ...]
    traits: QuantTraits
    begin: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What stands before the data. ``types`` holds each key's type name (an array's is that of its elements)."""

    version: int
    alignment: int
    metadata: dict[str, Any]
    types: dict[str, str]
    tensors: list[TensorRecord]


def read_header(data: memoryview, where: str) -> GgufHeader:
    """The header of the file whose bytes are ``data``; ``where`` names the file in errors.

    Raises:
        CorruptFile: with the file, the byte and the field.
    """
    return _Walk(data, where).header()


def _quant_traits_error(type_id: int) -> str:
    if type_id in REMOVED_QUANT_IDS:
        return f"type {type_id} ({REMOVED_QUANT_IDS[type_id]}) was removed from GGUF: requantize the model"
    # ik_llama.cpp numbers its private types in these ranges.
    if 97 <= type_id <= 99 or 133 <= type_id <= 158 or 202 <= type_id <= 399:
        return f"type {type_id} is private to ik_llama.cpp"
    return f"unknown type {type_id}"


class _Walk:
    """A position in ``data`` that cannot leave it."""

    def __init__(self, data: memoryview, where: str) -> None:
        self.data, self.where, self.size, self.at = data, where, len(data), 0

    def fail(self, found: str, at: int | None = None, accepted: str = "") -> NoReturn:
        position = self.at if at is None else at
        raise CorruptFile(found, where=f"{self.where}: byte {position}", accepted=accepted)

    def skip(self, n_bytes: int, what: str) -> int:
        """Moves over ``n_bytes`` and returns where they begin."""
        begin = self.at
        if n_bytes > self.size - begin:
            self.fail(f"{what} needs {n_bytes} bytes, the file has {self.size - begin} left (truncated?)")
        self.at = begin + n_bytes
        return begin

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.skip(8, what))[0])

    def name(self, what: str, max_bytes: int) -> str:
        begin = self.at
        n_bytes = self.u64(f"length of {what}")
        if not 0 < n_bytes <= max_bytes:
            self.fail(f"{what} is {n_bytes} bytes long", begin, f"1 to {max_bytes}")
        raw = bytes(self.data[(at := self.skip(n_bytes, what)) : at + n_bytes])
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8: {raw[:40]!r}", begin)
        if "\0" in text:
            self.fail(f"{what} holds a zero byte: {text[:40]!r}", begin)
        return text

    def text(self, what: str) -> str:
        n_bytes = self.u64(f"length of {what}")
        begin = self.skip(n_bytes, what)
        # Vocabularies do hold broken UTF-8; what cannot be decoded is shown as such.
        return str(self.data[begin : begin + n_bytes], "utf-8", "replace")

    def count(self, what: str, record_bytes: int) -> int:
        begin = self.skip(8, what)
        n = int(_I64.unpack_from(self.data, begin)[0])
        if not 0 <= n <= (self.size - self.at) // record_bytes:
            self.fail(
                f"{what} is {n}", begin, f"what fits: at most {(self.size - self.at) // record_bytes} in this file"
            )
        return n

    def header(self) -> GgufHeader:
        magic = self.u32("the magic")
        if magic != GGUF_MAGIC:
            if magic == int.from_bytes(_U32.pack(GGUF_MAGIC), "big"):
                self.fail("the magic is byte-swapped", 0, "little-endian GGUF")
            self.fail(f"no GGUF file: it begins with {_U32.pack(magic)!r}", 0, f"{_U32.pack(GGUF_MAGIC)!r}")
        version = self.u32("the version")
        if version not in VERSIONS:
            if version & 0xFFFF == 0 and version:
                self.fail("the version is byte-swapped: a big-endian file", 4, "little-endian GGUF")
            self.fail(f"GGUF version {version}", 4, f"versions {', '.join(map(str, VERSIONS))}")
        n_tensors = self.count("the tensor count", _MIN_TENSOR_BYTES)
        n_kv = self.count("the metadata count", _MIN_KV_BYTES)
        metadata: dict[str, Any] = {}
        types: dict[str, str] = {}
        for index in range(n_kv):
            begin = self.at
            key = self.name(f"key {index}", MAX_KEY_BYTES)
            if key in metadata:
                self.fail(f"duplicate key {key!r}", begin)
            types[key], metadata[key] = self.value(key)
        alignment = self.alignment(metadata, types)
        return GgufHeader(version, alignment, metadata, types, self.tensors(n_tensors, alignment))

    def alignment(self, metadata: dict[str, Any], types: dict[str, str]) -> int:
        key = str(Keys.General.ALIGNMENT)
        if key not in metadata:
            return int(GGUF_DEFAULT_ALIGNMENT)
        value = metadata[key]
        if types[key] != "UINT32" or isinstance(value, list):
            self.fail(f"{key} has type {types[key]}", accepted="UINT32")
        if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            self.fail(f"{key} is {value}", accepted=f"a power of two up to {MAX_ALIGNMENT}")
        return int(value)

    def value_type(self, what: str) -> GGUFValueType:
        begin = self.at
        number = self.u32(f"type of {what}")
        try:
            return GGUFValueType(number)
        except ValueError:
            self.fail(f"{what} has value type {number}", begin, "0 to 12")

    def value(self, key: str) -> tuple[str, Any]:
        kind = self.value_type(key)
        if kind is GGUFValueType.STRING:
            return kind.name, self.text(key)
        if kind is not GGUFValueType.ARRAY:
            return kind.name, self.numbers(key, kind, 1)[0]
        kind = self.value_type(f"{key}[]")
        if kind is GGUFValueType.ARRAY:
            self.fail(f"{key} is an array of arrays", accepted="arrays of numbers, booleans or strings")
        begin = self.at
        n = self.u64(f"length of {key}")
        if n > MAX_ARRAY_ELEMENTS:
            self.fail(f"{key} has {n} elements", begin, f"at most {MAX_ARRAY_ELEMENTS}")
        return kind.name, self.strings(key, n) if kind is GGUFValueType.STRING else self.numbers(key, kind, n)

    def numbers(self, key: str, kind: GGUFValueType, n: int) -> list[Any]:
        dtype = np.dtype(_SCALARS[kind])
        begin = self.skip(n * dtype.itemsize, key)
        array = np.frombuffer(self.data, dtype, n, begin)
        if kind is not GGUFValueType.BOOL:
            return list(array.tolist())
        if n and int(array.max()) > 1:
            self.fail(f"{key} holds a boolean of {int(array.max())}", begin, "0 or 1")
        return list(array.astype(bool).tolist())

    def strings(self, key: str, n: int) -> list[str]:
        # The hot loop of a load: locals only, one bound check per string.
        data, at, size, unpack, found = self.data, self.at, self.size, _U64.unpack_from, []
        for index in range(n):
            begin = at + 8
            end = begin + unpack(data, at)[0] if begin <= size else size + 1
            if end > size:
                self.fail(f"{key}[{index}] of {n} reaches past the end of the file (truncated?)", at)
            found.append(str(data[begin:end], "utf-8", "replace"))
            at = end
        self.at = at
        return found

    def tensors(self, n_tensors: int, alignment: int) -> list[TensorRecord]:
        rows: list[tuple[str, tuple[int, ...], QuantTraits, int, int, int]] = []
        names: set[str] = set()
        for index in range(n_tensors):
            at = self.at
            name = self.name(f"name of tensor {index}", MAX_NAME_BYTES)
            if name in names:
                self.fail(f"duplicate tensor {name!r}", at)
            names.add(name)
            shape, traits = self.shape(name)
            n_bytes = shape[0] // traits.block_elements * traits.block_bytes * math.prod(shape[1:])
            offset_at = self.at
            rows.append((name, shape, traits, self.u64(f"offset of {name}"), n_bytes, offset_at))
        data_begin = self.at + -self.at % alignment
        expected = 0
        records = []
        for name, shape, traits, offset, n_bytes, at in rows:
            if offset % alignment:
                self.fail(f"{name} begins at offset {offset}", at, f"multiples of {alignment}")
            if offset != expected:
                # llama.cpp wants this too: no gaps, no overlaps, in the order of the table.
                self.fail(f"{name} begins at offset {offset}", at, f"{expected}, where the tensor before it ends")
            begin = data_begin + offset
            if begin + n_bytes > self.size:
                missing = begin + n_bytes - self.size
                self.fail(
                    f"{name} ({n_bytes} bytes at byte {begin}) ends {missing} bytes past the end of the file of "
                    f"{self.size} bytes (truncated?)",
                    at,
                )
            records.append(TensorRecord(name, shape, traits, begin, n_bytes))
            expected = offset + n_bytes + -n_bytes % alignment
        return records

    def shape(self, name: str) -> tuple[tuple[int, ...], QuantTraits]:
        at = self.at
        n_dims = self.u32(f"dimension count of {name}")
        if not 1 <= n_dims <= MAX_DIMS:
            self.fail(f"{name} has {n_dims} dimensions", at, f"1 to {MAX_DIMS}")
        shape = tuple(self.u64(f"dimension {axis} of {name}") for axis in range(n_dims))
        # Python integers do not wrap; whatever fits the file fits 63 bits.
        if 0 in shape or math.prod(shape) >= 1 << 63:
            self.fail(f"{name} has shape {list(shape)}", at, "positive dimensions with a product below 2^63")
        type_at = self.at
        type_id = self.u32(f"type of {name}")
        traits = QUANTS_BY_ID.get(type_id)
        if traits is None:
            self.fail(f"{name} has {_quant_traits_error(type_id)}", type_at, "GGUF types up to Q2_0 (42)")
        if shape[0] % traits.block_elements:
            self.fail(
                f"{name} has rows of {shape[0]} weights of type {traits.name}",
                at,
                f"multiples of {traits.block_elements}",
            )
        return shape, traits
