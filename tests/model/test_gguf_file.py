"""The reader against the gguf package's writer and reader, and against every defect that we know of."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from raw_gguf import RawGguf

from kbench.core import QUANTS, CorruptFile, TensorInfo, UserError
from kbench.model import GgufTensor, open_gguf
from kbench.model.gguf_file import stack_experts

VALUES: dict[str, tuple[gguf.GGUFValueType, Any]] = {
    "u8": (gguf.GGUFValueType.UINT8, 200),
    "i8": (gguf.GGUFValueType.INT8, -100),
    "u16": (gguf.GGUFValueType.UINT16, 60000),
    "i16": (gguf.GGUFValueType.INT16, -30000),
    "u32": (gguf.GGUFValueType.UINT32, 2**32 - 1),
    "i32": (gguf.GGUFValueType.INT32, -(2**31)),
    "f32": (gguf.GGUFValueType.FLOAT32, 0.25),
    "bool": (gguf.GGUFValueType.BOOL, True),
    "text": (gguf.GGUFValueType.STRING, "Ġgrüße 你好"),
    "u64": (gguf.GGUFValueType.UINT64, 2**64 - 1),
    "i64": (gguf.GGUFValueType.INT64, -(2**63)),
    "f64": (gguf.GGUFValueType.FLOAT64, 0.1),
    "words": (gguf.GGUFValueType.ARRAY, ["a", "", "ß"]),
    "numbers": (gguf.GGUFValueType.ARRAY, [3, 1, 2]),
    "flags": (gguf.GGUFValueType.ARRAY, [True, False]),
}


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (kind, value) in VALUES.items():
        writer.add_key_value(key, value, kind)
    rng = np.random.default_rng(0)
    arrays = {
        "f32": (rng.standard_normal((3, 5)).astype(np.float32), None),
        "f16": (rng.standard_normal((2, 3, 7)).astype(np.float16), None),
        "q4": (rng.integers(0, 256, (6, 2 * 18), dtype=np.uint8), gguf.GGMLQuantizationType.Q4_0),
    }
    for name, (array, kind) in arrays.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = open_gguf(path)
    assert file.architecture == "llama"
    assert {key: file.metadata[key] for key in VALUES} == {key: value for key, (_, value) in VALUES.items()}
    assert all(type(file.metadata[key]) is type(value) for key, (_, value) in VALUES.items())
    assert file.types["u8"] == "UINT8"
    assert file.types["words"] == "STRING"
    reader = gguf.GGUFReader(path)
    assert len(reader.tensors) == len(file.tensors) == len(arrays)
    for tensor in reader.tensors:
        mine = file.tensors[tensor.name]
        assert mine.info.shape == tuple(int(n) for n in tensor.shape)
        assert mine.info.quant == tensor.tensor_type.name
        assert mine.info.n_bytes == tensor.n_bytes
        assert bytes(mine.raw) == arrays[tensor.name][0].tobytes()
    assert file.tensor_bytes == sum(array.nbytes for array, _ in arrays.values())


def test_tensors_are_views_that_cannot_be_written(tiny_gguf: Path) -> None:
    tensor = open_gguf(tiny_gguf).tensors["token_embd.weight"]
    assert not tensor.raw.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        tensor.raw[0] = 1


def test_a_real_file(smollm2_path: Path) -> None:
    """Its card says 134.5 M parameters and 49152 tokens; the gguf package's reader would need 5 to 15 s for it."""
    file = open_gguf(smollm2_path)
    assert sum(tensor.info.n_elements for tensor in file.tensors.values()) == 134_515_008
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == 49152
    assert tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert file.metadata["tokenizer.ggml.merges"][0] == "Ġ t"
    # The last tensor ends where the file does: offsets and sizes are right for all before it.
    last = list(file.tensors.values())[-1].raw
    assert last.tobytes() == smollm2_path.read_bytes()[-last.size :]


# Each case: what is written, and what the message must say besides the file's name.
U32 = struct.Struct("<I").pack
U64 = struct.Struct("<Q").pack
HUGE = 2**63 - 1


def _one(**tensor: Any) -> bytes:
    return RawGguf().architecture().tensor(**tensor).bytes(4096)


# Where things are: a key "a" at byte 24 has its type at 33 and its value at 37; after the architecture, 45 bytes, the
# tensor "a.weight" begins at 69, its dimensions at 85, its type at 97, its offset at 101.
CASES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "byte 0", "empty"),
    "one byte": (b"G", "byte 0", "the magic needs 4 bytes"),
    "magic": (b"PK\3\4" + bytes(60), "byte 0", "no GGUF file"),
    "magic swapped": (b"FUGG" + bytes(60), "byte 0", "byte-swapped"),
    "no version": (b"GGUF", "byte 4", "the version needs"),
    "version 1": (RawGguf(version=1).bytes(64), "byte 4", "GGUF version 1"),
    "version 4": (RawGguf(version=4).bytes(64), "byte 4", "GGUF version 4"),
    "big endian": (RawGguf(version=3 << 24).bytes(64), "byte 4", "big-endian"),
    "negative tensors": (RawGguf().bytes(64, n_tensors=-1), "byte 8", "the tensor count is -1"),
    "many tensors": (RawGguf().bytes(64, n_tensors=HUGE), "byte 8", "the tensor count is 9223372036854775807"),
    "many keys": (RawGguf().bytes(64, n_kv=10**6), "byte 16", "the metadata count is 1000000"),
    "negative keys": (RawGguf().bytes(64, n_kv=-5), "byte 16", "the metadata count is -5"),
    "key count too high": (RawGguf().architecture().bytes(64, n_kv=2), "byte 69", "key 1 is 0 bytes long"),
    "empty key": (RawGguf().add("", 4, U32(1)).bytes(64), "byte 24", "key 0 is 0 bytes long"),
    "long key": (RawGguf().add("k" * 70000, 4, U32(1)).bytes(64), "byte 24", "key 0 is 70000 bytes long"),
    "key not UTF-8": (RawGguf().add(b"\xff\xfe", 4, U32(1)).bytes(64), "byte 24", "not UTF-8"),
    "key with NUL": (RawGguf().add("a\0b", 4, U32(1)).bytes(64), "byte 24", "zero byte"),
    "duplicate key": (RawGguf().add("a", 4, U32(1)).add("a", 4, U32(1)).bytes(64), "byte 41", "duplicate key 'a'"),
    "value type": (RawGguf().add("a", 13, U32(1)).bytes(64), "byte 33", "value type 13"),
    "boolean of 2": (RawGguf().add("a", 7, b"\2").bytes(64), "byte 37", "boolean of 2"),
    "long string": (RawGguf().add("a", 8, U64(HUGE)).bytes(64), "byte 45", "a needs 9223372036854775807 bytes"),
    "array of arrays": (RawGguf().add("a", 9, U32(9) + U64(1)).bytes(64), "", "array of arrays"),
    "array element type": (RawGguf().add("a", 9, U32(77) + U64(1)).bytes(64), "byte 37", "value type 77"),
    "long array": (RawGguf().add("a", 9, U32(0) + U64(HUGE)).bytes(64), "byte 41", f"{HUGE} elements"),
    "array past the end": (RawGguf().add("a", 9, U32(4) + U64(1000)).bytes(64), "byte 49", "needs 4000 bytes"),
    "strings past the end": (RawGguf().add("a", 9, U32(8) + U64(1000)).bytes(64), "", "a[9] of 1000 reaches past"),
    "wrapping string": (RawGguf().add("a", 9, U32(8) + U64(1) + U64(2**64 - 1)).bytes(64), "byte 49", "a[0] of 1"),
    "alignment type": (RawGguf().add("general.alignment", 10, U64(32)).bytes(64), "", "has type UINT64"),
    "alignment 0": (RawGguf().add("general.alignment", 4, U32(0)).bytes(64), "", "general.alignment is 0"),
    "alignment 24": (RawGguf().add("general.alignment", 4, U32(24)).bytes(64), "", "general.alignment is 24"),
    "alignment 2^31": (RawGguf().add("general.alignment", 4, U32(2**31)).bytes(64), "", "general.alignment is"),
    "alignment array": (RawGguf().add("general.alignment", 9, U32(4) + U64(0)).bytes(64), "", "has type UINT32"),
    "nameless tensor": (_one(name=""), "byte 69", "0 bytes long"),
    "long name": (_one(name="n" * 64), "byte 69", "64 bytes long"),
    "name not UTF-8": (_one(name=b"\xc3"), "byte 69", "not UTF-8"),
    "no dimension": (_one(n_dims=0, shape=()), "byte 85", "a.weight has 0 dimensions"),
    "five dimensions": (_one(shape=(1, 1, 1, 1, 1)), "byte 85", "a.weight has 5 dimensions"),
    "zero dimension": (_one(shape=(32, 0)), "byte 85", "has shape [32, 0]"),
    "product overflow": (_one(shape=(2**32, 2**32)), "byte 85", "product below 2^63"),
    "huge dimension": (_one(shape=(2**63,)), "byte 85", "product below 2^63"),
    "negative type": (_one(kind=2**32 - 1), "byte 97", "unknown type 4294967295"),
    "unknown type": (_one(kind=77), "byte 97", "unknown type 77"),
    "removed type": (_one(kind=4), "byte 97", "type 4 (Q4_2) was removed"),
    "removed repacked type": (_one(kind=31), "byte 97", "type 31 (Q4_0_4_4) was removed"),
    "type of ik_llama": (_one(kind=137), "byte 97", "private to ik_llama.cpp"),
    "row and block": (_one(shape=(100, 2), kind=12), "byte 85", "rows of 100 weights of type Q4_K"),
    "bytes beyond the file": (_one(shape=(2**40,)), "byte 101", "ends 4398046507008 bytes past the end"),
    "unaligned offset": (_one(offset=8), "byte 101", "begins at offset 8"),
    "wrong offset": (_one(offset=64), "byte 101", "begins at offset 64"),
    "offset wraps": (_one(offset=2**64 - 32), "byte 101", "begins at offset 18446744073709551584"),
    "overlap": (
        RawGguf().architecture().tensor(shape=(1024,)).tensor("b.weight", (32,), offset=32).bytes(8192),
        "",
        "accepted: 4096",
    ),
    "duplicate tensor": (RawGguf().architecture().tensor().tensor(offset=128).bytes(4096), "", "duplicate tensor"),
    "truncated data": (RawGguf().architecture().tensor(shape=(1024,)).bytes(4000), "byte 101", "ends 96 bytes"),
    "truncated table": (RawGguf().architecture().tensor().bytes(0)[:90], "", "needs 8 bytes, the file has 1 left"),
    "no architecture": (RawGguf().tensor().bytes(4096), "", "general.architecture is missing"),
    "architecture is a number": (
        RawGguf().add("general.architecture", 4, U32(7)).bytes(64),
        "",
        "general.architecture is 7",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_defect_is_told_with_file_and_byte(case: str, tmp_path: Path) -> None:
    data, at, says = CASES[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(CorruptFile) as error:
        open_gguf(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(path) in error.value.where
    assert at in error.value.where
    assert says in error.value.message
    assert peak < 4 << 20  # nothing was allocated because a count said so


def test_an_empty_but_right_file_opens(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(RawGguf().architecture().tensor(shape=(8, 4)).bytes(128))
    assert open_gguf(path).tensors["a.weight"].info.shape == (8, 4)


def test_alignment_of_the_file_is_followed(tmp_path: Path) -> None:
    raw = RawGguf().architecture().add("general.alignment", 4, U32(64)).tensor(shape=(8,)).tensor("b", (8,), offset=64)
    data = raw.bytes(0)
    data += b"\0" * (-len(data) % 64) + bytes(64) + np.arange(8, dtype="<f4").tobytes()
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    assert open_gguf(path).tensors["b"].raw.view("<f4").tolist() == list(range(8))


def test_every_known_type_opens(tmp_path: Path) -> None:
    for traits in QUANTS.values():
        path = tmp_path / f"{traits.name}.gguf"
        raw = RawGguf().architecture().tensor(shape=(traits.block_elements, 3), kind=traits.ggml_id)
        path.write_bytes(raw.bytes(3 * traits.block_bytes))
        assert open_gguf(path).tensors["a.weight"].raw.size == 3 * traits.block_bytes


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "unreadable"])
def test_what_is_no_file_is_told(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "unreadable":
        path.write_bytes(b"GGUF")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    with pytest.raises(UserError) as error:
        open_gguf(path)
    assert str(path) in error.value.message


def _tensor(name: str, shape: tuple[int, ...], quant: str = "F32") -> GgufTensor:
    return GgufTensor(TensorInfo(name, shape, quant, ""), np.arange(4 * int(np.prod(shape)), dtype=np.uint8))


def test_experts_in_pieces_become_stacks() -> None:
    parts = [_tensor(f"blk.0.ffn_up.{i}.weight", (2, 3)) for i in (1, 0)]
    fused = _tensor("blk.1.ffn_gate_up_exps.weight", (2, 6, 4))
    found = stack_experts({t.info.name: t for t in (*parts, fused)}, "f")
    assert {n: t.info.shape for n, t in found.items()} == {
        "blk.1.ffn_gate_exps.weight": (2, 3, 4), "blk.1.ffn_up_exps.weight": (2, 3, 4),
        "blk.0.ffn_up_exps.weight": (2, 3, 2),
    }  # fmt: skip
    assert found["blk.0.ffn_up_exps.weight"].pieces == (parts[1].raw, parts[0].raw)
    for half, part in enumerate(("gate", "up")):
        stack = np.stack(found[f"blk.1.ffn_{part}_exps.weight"].pieces)
        np.testing.assert_array_equal(stack, fused.raw.reshape(4, 2, -1)[:, half])


@pytest.mark.parametrize(
    "parts",
    [
        [("blk.0.ffn_up.0.weight", (2, 3)), ("blk.0.ffn_up.2.weight", (2, 3))],
        [("blk.0.ffn_up.1.weight", (2, 3))],
        [("blk.0.ffn_up.0.weight", (2, 3)), ("blk.0.ffn_up.1.weight", (2, 4))],
        [("blk.0.ffn_up.0.weight", (2, 3)), ("blk.0.ffn_up_exps.weight", (2, 3, 1))],
    ],
)
def test_experts_that_make_no_stack(parts: list[tuple[str, tuple[int, ...]]]) -> None:
    with pytest.raises(CorruptFile, match=r"f: blk\.0\.ffn_up\.\*\.weight"):
        stack_experts({name: _tensor(name, shape) for name, shape in parts}, "f")


@pytest.mark.parametrize("apart", ["gate", "up"])
@pytest.mark.parametrize("first", [True, False])
def test_experts_that_are_there_twice(apart: str, first: bool) -> None:
    """Which of the two a model would compute with is nobody's to guess."""
    both = [_tensor("blk.0.ffn_gate_up_exps.weight", (2, 6, 4)), _tensor(f"blk.0.ffn_{apart}_exps.weight", (2, 3, 4))]
    with pytest.raises(CorruptFile, match=rf"f: blk\.0\.ffn_{apart}_exps\.weight: .* in blk\.0\.ffn_gate_up_exps"):
        stack_experts({t.info.name: t for t in (both if first else both[::-1])}, "f")


@pytest.mark.parametrize("number", ["00", "٠"])
def test_an_experts_number_has_one_spelling(number: str) -> None:
    """Or one tensor would stand silently for two; one that is named otherwise is refused as unknown."""
    tensors = [_tensor(f"blk.0.ffn_up.{i}.weight", (2, 3)) for i in ("0", "1", number)]
    found = stack_experts({t.info.name: t for t in tensors}, "f")
    assert found["blk.0.ffn_up_exps.weight"].pieces == (tensors[0].raw, tensors[1].raw)
    assert found[f"blk.0.ffn_up.{number}.weight"] is tensors[2]
