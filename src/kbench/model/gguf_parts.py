"""The files that a model lies in: one, or the parts that llama.cpp's ``gguf-split`` and the gguf package make of it.

::

    NAME-00001-of-00003.gguf   split.no 0   all other metadata, tensors
    NAME-00002-of-00003.gguf   split.no 1   tensors
    NAME-00003-of-00003.gguf   split.no 2   tensors

Each part says ``split.count``, and in ``split.tensors.count`` how many tensors all parts have together.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf.constants import Keys

from kbench.core import CorruptFile, UserError

from .gguf_header import GgufHeader, read_header

NO, COUNT, TENSORS = (
    str(key)
    for key in (Keys.Split.LLM_KV_SPLIT_NO, Keys.Split.LLM_KV_SPLIT_COUNT, Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT)
)
# Each part stays open, and 1024 open files are the customary limit of a process; published models have tens of parts.
MAX_PARTS = 512
# Names of missing parts that an error tells.
_TOLD = 3
# llama.cpp's own format of names.
_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufPart:
    """A mapped file and its header."""

    path: Path
    data: npt.NDArray[np.uint8]
    header: GgufHeader


def part_paths(path: Path) -> tuple[Path, ...]:
    """Where the parts of the model are of which ``path`` is one by its name, in order, there or not; else itself."""
    match = _NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]) <= MAX_PARTS:
        return (path,)
    return tuple(path.with_name(f"{match[1]}-{i:05}-of-{match[3]}.gguf") for i in range(1, int(match[3]) + 1))


def first_part(path: Path) -> Path:
    """What other programs want to be given to open the model that ``path`` is, or is a part of."""
    first = part_paths(path)[0]
    return first if first.is_file() else path


def model_stem(path: Path) -> str:
    """The model's name by its file's: ``NAME`` of ``NAME.gguf`` and of ``NAME-00002-of-00003.gguf``."""
    match = _NAME.fullmatch(path.name)
    return match[1] if match else path.stem


def stored_bytes(path: Path) -> int:
    """The size of the model's file, or of all its parts; 0 for what is not there."""
    found = 0
    for part in part_paths(path):
        try:
            found += part.stat().st_size
        except OSError:
            continue
    return found


def read_parts(path: Path) -> list[GgufPart]:
    """The file ``path``, or where it is a part of a model all parts, in order; headers are read, no tensor is.

    Raises:
        UserError: no such file, not a regular file, not readable, or a part that is missing.
        CorruptFile: with the file, the byte and the field; parts that are not of one model.
    """
    given = _read(path)
    count = _number(given, COUNT) if COUNT in given.header.metadata else 1
    if count <= 1:  # a file that was joined again says 0
        return [given]
    if count > MAX_PARTS:
        raise CorruptFile(f"{COUNT} is {count}", where=str(path), accepted=f"at most {MAX_PARTS} parts")
    number, paths = _number(given, NO), part_paths(path)
    if len(paths) != count or number >= count or paths[number] != path:
        raise CorruptFile(
            f"a part of a model ({NO} {number}, {COUNT} {count}) by another part's name",
            where=str(path),
            accepted=f"a name that ends in -{number + 1:05}-of-{count:05}.gguf",
            todo="give every part the name that it was made with: the others are found by it",
        )
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        more = f" and {len(missing) - _TOLD} more" if len(missing) > _TOLD else ""
        raise UserError(
            f"part {number + 1} of {count}; not beside it: {', '.join(missing[:_TOLD])}{more}",
            where=str(path),
            accepted=f"{paths[0].name} to {paths[-1].name} in one folder",
            todo="bring what is missing there, under these names",
        )
    parts = [given if part == path else _read(part) for part in paths]
    _check(parts)
    return parts


def _check(parts: Sequence[GgufPart]) -> None:
    """That they are the parts of one model."""
    told = _number(parts[0], TENSORS)
    names: dict[str, Path] = {}
    for index, part in enumerate(parts):
        wanted = {NO: index, COUNT: len(parts)}
        for key, value in (wanted | ({TENSORS: told} if TENSORS in part.header.metadata else {})).items():
            if _number(part, key) != value:
                raise CorruptFile(
                    f"{key} is {_number(part, key)}",
                    where=str(part.path),
                    accepted=f"{value}, as {'its name' if key in wanted else parts[0].path.name} says",
                    todo="put parts of one model there",
                )
        for record in part.header.tensors:
            if record.name in names:
                raise CorruptFile(
                    f"tensor {record.name!r} is in {names[record.name].name}, too",
                    where=str(part.path),
                    accepted="each tensor in one part",
                )
            names[record.name] = part.path
    if len(names) != told:
        raise CorruptFile(
            f"{TENSORS} is {told}, the {len(parts)} parts have {len(names)}",
            where=str(parts[0].path),
            accepted="the parts of one model, whole",
            todo="bring the parts again",
        )


def _number(part: GgufPart, key: str) -> int:
    value = part.header.metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        found = "missing" if value is None else f"{str(value)[:40]!r}"
        raise CorruptFile(f"{key} is {found}", where=str(part.path), accepted="a whole number")
    return value


def _read(path: Path) -> GgufPart:
    data = _map(path)
    return GgufPart(path, data, read_header(data.data, str(path)))


def _map(path: Path) -> npt.NDArray[np.uint8]:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a pipe would block, a device could not be mapped
            raise UserError("not a regular file", where=str(path), accepted="a .gguf file")
        if status.st_size == 0:
            raise CorruptFile("an empty file", where=f"{path}: byte 0", accepted="a GGUF header")
        return np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise UserError("no such file", where=str(path), todo="check the path") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be opened: {error}", where=str(path)) from None
