"""A GGUF file, opened and checked, its tensors as views of a memory map."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import Keys

from kbench.core import CorruptFile, TensorInfo, Unsupported, UserError

from .gguf_header import GgufHeader, read_header
from .tensor_kind import tensor_kind


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """``raw`` is the tensor's bytes, uint8 with one dimension: a read-only view of the memory map."""

    info: TensorInfo
    raw: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file. ``metadata`` holds Python values: numbers, booleans, text, lists of one of them.

    ``types`` names each key's type as GGUF does (an array's is that of its elements).
    """

    path: Path
    architecture: str
    metadata: Mapping[str, Any]
    types: Mapping[str, str]
    tensors: Mapping[str, GgufTensor]

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.info.n_bytes for tensor in self.tensors.values())


def open_gguf(path: Path | str) -> GgufFile:
    """Opens ``path`` and checks its header; no tensor is read.

    Raises:
        UserError: no such file, not a regular file, not readable.
        CorruptFile: with the file, the byte and the field.
        Unsupported: a split file.
    """
    path = Path(path)
    data = _map(path)
    header = read_header(data.data, str(path))
    _refuse_split(header, path)
    architecture = header.metadata.get(Keys.General.ARCHITECTURE)
    if not isinstance(architecture, str) or not architecture:
        found = "missing" if architecture is None else f"{architecture!r}"
        raise CorruptFile(f"{Keys.General.ARCHITECTURE} is {found}", where=str(path), accepted="a name such as llama")
    tensors = {
        record.name: GgufTensor(
            TensorInfo(record.name, record.shape, record.traits.name, tensor_kind(record.name)),
            data[record.begin : record.begin + record.n_bytes],
        )
        for record in header.tensors
    }
    return GgufFile(
        path, architecture, MappingProxyType(header.metadata), MappingProxyType(header.types), MappingProxyType(tensors)
    )


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


def _refuse_split(header: GgufHeader, path: Path) -> None:
    keys = [str(Keys.Split.LLM_KV_SPLIT_NO), str(Keys.Split.LLM_KV_SPLIT_COUNT)]
    if header.metadata.get(keys[1], 0) not in (0, 1):
        count, number = header.metadata[keys[1]], header.metadata.get(keys[0], "?")
        raise Unsupported(
            f"part of a split model ({keys[0]} {number}, {keys[1]} {count})",
            where=str(path),
            accepted="a GGUF in one file",
            todo="join the parts with llama-gguf-split --merge",
        )
