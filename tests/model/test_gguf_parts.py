"""Models in several files, by the gguf package's writer, by llama.cpp, and wrong ones by hand."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_gguf import RawGguf
from split_files import split_file

from kbench.core import CorruptFile, KbenchError, UserError
from kbench.model import GgufFile, describe_gguf, first_part, model_stem, open_gguf, stored_bytes
from kbench.model.gguf_parts import MAX_PARTS, part_paths

UINT16, INT32 = 2, 5
N_PARTS = 3


@pytest.fixture(scope="module")
def parts(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return split_file(tiny_gguf, 4, tmp_path_factory.mktemp("parts") / "tiny.gguf")


def same(found: GgufFile, whole: GgufFile) -> None:
    assert (found.architecture, found.metadata, found.types) == (whole.architecture, whole.metadata, whole.types)
    assert list(found.tensors) == list(whole.tensors)
    for name, tensor in whole.tensors.items():
        assert found.tensors[name].info == tensor.info
        np.testing.assert_array_equal(found.tensors[name].raw, tensor.raw)
    assert found.tensor_bytes == whole.tensor_bytes


@pytest.mark.parametrize("given", [0, 1, -1])
def test_any_part_opens_all_of_them(given: int, parts: list[Path], tiny_gguf: Path) -> None:
    whole, found = open_gguf(tiny_gguf), open_gguf(parts[given])
    assert len(parts) == -(-len(whole.tensors) // 4) > 2
    same(found, whole)
    assert describe_gguf(found) == describe_gguf(whole)
    assert (found.path, list(found.paths)) == (parts[0], parts)
    assert found.file_bytes == sum(part.stat().st_size for part in parts) == stored_bytes(parts[given])
    assert whole.file_bytes == tiny_gguf.stat().st_size == stored_bytes(tiny_gguf)
    assert first_part(parts[given]) == parts[0]


def test_tensors_are_in_the_order_of_the_files(parts: list[Path]) -> None:
    begins = [tensor.begin for tensor in open_gguf(parts[0]).tensors.values()]
    assert begins == sorted(begins) and begins[-1] > sum(part.stat().st_size for part in parts[:-1])


def test_a_model_of_links_opens(parts: list[Path], tmp_path: Path, tiny_gguf: Path) -> None:
    """Caches of downloads keep files under hashes, and links to them under their names."""
    for part in parts:
        (tmp_path / part.name).symlink_to(part.rename(part.with_suffix(".blob")))
    try:
        same(open_gguf(tmp_path / parts[1].name), open_gguf(tiny_gguf))
    finally:
        for part in parts:
            part.with_suffix(".blob").rename(part)


def test_what_llama_cpp_splits_opens(parts: list[Path], tmp_path: Path, tiny_gguf: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    how = llama_cpp.llama_model_quantize_default_params()
    how.only_copy = how.keep_split = True
    target = tmp_path / "copied"
    assert not llama_cpp.llama_model_quantize(str(parts[0]).encode(), str(target).encode(), ctypes.byref(how))
    copied = sorted(tmp_path.iterdir())
    assert len(copied) == len(parts)
    found, whole = open_gguf(copied[1]), open_gguf(tiny_gguf)
    assert found.tensors.keys() == whole.tensors.keys()
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(found.tensors[name].raw, tensor.raw)


@pytest.mark.parametrize("stem", ["m", "a-00001-of-00002", "DeepSeek-V3.Q4_K_M", "ü b"])
def test_names_are_llama_cpps(stem: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    prefix, room = tmp_path / stem, ctypes.create_string_buffer(1000)
    names = []
    for index in range(12):
        llama_cpp.llama_split_path(room, len(room), str(prefix).encode(), index, 12)
        names.append(Path(room.value.decode()))
    assert all(part_paths(name) == tuple(names) for name in names)
    assert llama_cpp.llama_split_prefix(room, len(room), str(names[5]).encode(), 5, 12) > 0
    assert room.value.decode() == str(prefix.with_name(model_stem(names[5])))


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-1-of-3.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-00513.gguf"]
)
def test_names_of_no_part(name: str) -> None:
    assert part_paths(Path(name)) == (Path(name),) and first_part(Path(name)) == Path(name)


def numbers(no: int | None, count: int, total: int | None) -> Callable[[RawGguf], RawGguf]:
    def add(raw: RawGguf) -> RawGguf:
        if no is not None:
            raw.add("split.no", UINT16, struct.pack("<H", no))
        raw.add("split.count", UINT16, struct.pack("<H", count))
        return raw if total is None else raw.add("split.tensors.count", INT32, struct.pack("<i", total))

    return add


def write(folder: Path, index: int, add: Callable[[RawGguf], RawGguf], tensors: tuple[str, ...]) -> Path:
    raw = RawGguf().architecture() if index == 0 else RawGguf()
    add(raw)
    for i, name in enumerate(tensors):
        raw.tensor(name, offset=128 * i)
    path = folder / f"m-{index + 1:05}-of-{N_PARTS:05}.gguf"
    path.write_bytes(raw.bytes(128 * len(tensors)))
    return path


def good(folder: Path) -> list[Path]:
    names = [("a", "b"), ("c",), ("d",)]
    return [write(folder, i, numbers(i, N_PARTS, 4), names[i]) for i in range(N_PARTS)]


def test_hand_made_parts_open(tmp_path: Path) -> None:
    assert list(open_gguf(good(tmp_path)[2]).tensors) == ["a", "b", "c", "d"]


def test_experts_may_be_in_different_parts(tmp_path: Path) -> None:
    good(tmp_path)
    for index, expert in enumerate((1, 0, 2)):
        write(tmp_path, index, numbers(index, 3, 3), (f"blk.0.ffn_up.{expert}.weight",))
    (stack,) = open_gguf(first_part(tmp_path / "m-00003-of-00003.gguf")).tensors.values()
    assert stack.info.shape == (32, 3) and len(stack.pieces) == 3
    assert 0 < stack.begin < (tmp_path / "m-00001-of-00003.gguf").stat().st_size


# What replaces a part: its index, numbers and tensors; which part is named, and what is said.
CASES: dict[str, tuple[int, Callable[[RawGguf], RawGguf], tuple[str, ...], str, str]] = {
    "another's number": (1, numbers(2, 3, 4), ("c",), "m-00002", "split.no is 2 · accepted: 1, as its name says"),
    "no number": (1, numbers(None, 3, 4), ("c",), "m-00002", "split.no is missing"),
    "another count": (2, numbers(2, 4, 4), ("d",), "m-00003", "split.count is 4 · accepted: 3, as its name says"),
    "no split": (2, lambda raw: raw, ("d",), "m-00003", "split.no is missing"),
    "another sum": (1, numbers(1, 3, 9), ("c",), "m-00002", "split.tensors.count is 9 · accepted: 4, as m-00001"),
    "too few": (1, numbers(1, 3, 4), (), "m-00001", "split.tensors.count is 4, the 3 parts have 3"),
    "too many": (1, numbers(1, 3, 4), ("c", "e"), "m-00001", "split.tensors.count is 4, the 3 parts have 5"),
    "twice": (2, numbers(2, 3, 4), ("a",), "m-00003", "tensor 'a' is in m-00001-of-00003.gguf, too"),
    "no sum": (0, numbers(0, 3, None), ("a", "b"), "m-00001", "split.tensors.count is missing"),
    "negative sum": (
        0,
        lambda raw: numbers(0, 3, None)(raw).add("split.tensors.count", INT32, struct.pack("<i", -1)),
        ("a", "b"),
        "m-00001",
        "split.tensors.count is '-1'",
    ),
    "text": (1, lambda raw: numbers(None, 3, 4)(raw).add("split.no", 8, RawGguf.text("1")), ("c",), "m-00002", "'1'"),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_that_disagree_are_told(case: str, tmp_path: Path) -> None:
    paths = good(tmp_path)
    index, add, tensors, named, says = CASES[case]
    write(tmp_path, index, add, tensors)
    with pytest.raises(CorruptFile) as error:
        open_gguf(paths[0])
    assert named in error.value.where
    assert says in error.value.message


def test_the_part_that_is_given_must_have_its_own_name(tmp_path: Path) -> None:
    paths = good(tmp_path)
    for name in ("model.gguf", "m-00003-of-00004.gguf"):
        paths[1].rename(tmp_path / name)
        with pytest.raises(CorruptFile, match=r"split\.no 1, split\.count 3.*ends in -00002-of-00003\.gguf"):
            open_gguf(tmp_path / name)
        (tmp_path / name).rename(paths[1])


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = good(tmp_path)
    paths[0].unlink()
    with pytest.raises(UserError) as error:
        open_gguf(paths[2])
    for text in ("part 3 of 3; not beside it: m-00001-of-00003.gguf", "m-00001-of-00003.gguf to m-00003", "bring"):
        assert text in error.value.message
    assert str(paths[2]) in error.value.where


def test_of_many_missing_parts_some_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00009.gguf"
    path.write_bytes(numbers(0, 9, 4)(RawGguf().architecture()).bytes(64))
    with pytest.raises(UserError, match=r"m-00002-of-00009\.gguf, .*m-00004-of-00009\.gguf and 5 more"):
        open_gguf(path)


@pytest.mark.parametrize("count", [MAX_PARTS + 1, 65535])
def test_a_count_beyond_reason_is_refused(count: int, tmp_path: Path) -> None:
    path = tmp_path / f"m-00001-of-{count:05}.gguf"
    path.write_bytes(numbers(0, count, 4)(RawGguf().architecture()).bytes(64))
    with pytest.raises(CorruptFile, match=rf"split\.count is {count}.*at most {MAX_PARTS} parts"):
        open_gguf(path)


@pytest.mark.parametrize("count", [0, 1])
def test_one_file_may_speak_of_a_split(count: int, tmp_path: Path) -> None:
    """llama-gguf-split leaves a count of 0 in what it joins."""
    path = tmp_path / "m-00002-of-00003.gguf"  # whatever its name
    path.write_bytes(numbers(0, count, 1)(RawGguf().architecture()).tensor("a").bytes(128))
    opened = open_gguf(path)
    assert opened.paths == (path,) and list(opened.metadata) == ["general.architecture"] == list(opened.types)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, N_PARTS - 1), st.integers(0, 300), st.binary(min_size=1, max_size=8))
def test_damaged_parts_open_or_are_refused(tmp_path: Path, index: int, at: int, wrong: bytes) -> None:
    paths = good(tmp_path)
    data = bytearray(paths[index].read_bytes())
    data[at : at + len(wrong)] = wrong
    paths[index].write_bytes(data)
    try:
        open_gguf(paths[0])
    except KbenchError as error:
        assert "m-0000" in error.where
