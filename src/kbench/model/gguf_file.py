"""A GGUF file, opened and checked, its tensors as views of a memory map."""

from __future__ import annotations

import os
import re
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
    """``raw`` is the tensor's bytes, uint8 with one dimension: a read-only view of the memory map.

    A stack of experts whose matrices do not lie side by side has ``parts`` instead, one view each, and no ``raw``.
    """

    info: TensorInfo
    raw: npt.NDArray[np.uint8]
    parts: tuple[npt.NDArray[np.uint8], ...] = ()

    @property
    def pieces(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """All bytes, as one view or several."""
        return self.parts or (self.raw,)


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


_SPLIT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d{1,5})\.weight")
_FUSED = re.compile(r"(blk\.\d+\.ffn_)gate_up_exps\.weight")
_NO_BYTES: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


def stack_experts(tensors: Mapping[str, GgufTensor], where: str) -> dict[str, GgufTensor]:
    """``tensors`` with the experts' matrices in one stack each.

    Files of 2023 have a tensor for each expert, some newer ones gate and up in one::

        blk.0.ffn_up.0.weight, blk.0.ffn_up.1.weight ...  (k, n)               ->  ffn_up_exps (k, n, experts)
        blk.0.ffn_gate_up_exps.weight                     (k, 2 n, experts)    ->  ffn_gate_exps, ffn_up_exps

    Raises:
        CorruptFile: experts that are missing or differ in shape or type.
    """
    found: dict[str, GgufTensor] = {}
    experts: dict[str, dict[int, GgufTensor]] = {}
    for name, tensor in tensors.items():
        if match := _SPLIT.fullmatch(name):
            experts.setdefault(f"{match[1]}_exps.weight", {})[int(match[2])] = tensor
        elif (match := _FUSED.fullmatch(name)) and len(tensor.info.shape) == 3 and tensor.info.shape[1] % 2 == 0:
            k, rows, count = tensor.info.shape
            halves = tensor.raw.reshape(2 * count, -1)
            for half, part in enumerate(("gate", "up")):
                stem = f"{match[1]}{part}_exps.weight"
                info = TensorInfo(stem, (k, rows // 2, count), tensor.info.quant, tensor_kind(stem))
                found[stem] = GgufTensor(info, _NO_BYTES, tuple(halves[half::2]))
        else:
            found[name] = tensor
    for name, parts in experts.items():
        first = parts.get(0)
        alike = {(t.info.shape, t.info.quant) for t in parts.values()}
        if first is None or sorted(parts) != list(range(len(parts))) or len(alike) > 1 or name in found:
            raise CorruptFile(
                f"{len(parts)} experts that do not make a stack",
                where=f"{where}: {name.replace('_exps', '.*')}",
                accepted="every expert from 0 on once, all of one shape and type",
            )
        info = TensorInfo(name, (*first.info.shape, len(parts)), first.info.quant, tensor_kind(name))
        found[name] = GgufTensor(info, _NO_BYTES, tuple(parts[i].raw for i in range(len(parts))))
    return found


def open_gguf(path: Path | str) -> GgufFile:
    """Opens ``path`` and checks its header; no tensor is read.

    Experts appear as one stack of matrices for each of gate, up and down, however the file holds them.

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
        path,
        architecture,
        MappingProxyType(header.metadata),
        MappingProxyType(header.types),
        MappingProxyType(stack_experts(tensors, str(path))),
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
