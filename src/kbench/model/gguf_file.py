"""A GGUF model, opened and checked, its tensors as views of memory maps: of one file, or of all its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import Keys

from kbench.core import CorruptFile, TensorInfo

from .gguf_parts import COUNT, NO, TENSORS, read_parts
from .tensor_kind import tensor_kind


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """``raw`` is the tensor's bytes, uint8 with one dimension: a read-only view of the memory map.

    A stack of experts whose matrices do not lie side by side has ``parts`` instead, one view each, and no ``raw``.
    ``begin`` is where its first byte lies, counted through all files of the model.
    """

    info: TensorInfo
    raw: npt.NDArray[np.uint8]
    parts: tuple[npt.NDArray[np.uint8], ...] = ()
    begin: int = 0

    @property
    def pieces(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """All bytes, as one view or several."""
        return self.parts or (self.raw,)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open model. ``metadata`` holds Python values: numbers, booleans, text, lists of one of them.

    ``paths`` are its files, ``file_bytes`` their size together. ``types`` names each key's type as GGUF does (an
    array's is that of its elements). Of several parts the first has the metadata; what they say of the split is left
    out.
    """

    paths: tuple[Path, ...]
    file_bytes: int
    architecture: str
    metadata: Mapping[str, Any]
    types: Mapping[str, str]
    tensors: Mapping[str, GgufTensor]

    @property
    def path(self) -> Path:
        """The file, or the first part: what names the model to people, and to other programs."""
        return self.paths[0]

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.info.n_bytes for tensor in self.tensors.values())


# Each number in one spelling: another one's tensor is none that the model knows.
_SPLIT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(0|[1-9][0-9]{0,4})\.weight")
_FUSED = re.compile(r"(blk\.\d+\.ffn_)gate_up_exps\.weight")
_NO_BYTES: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


def stack_experts(tensors: Mapping[str, GgufTensor], where: str) -> dict[str, GgufTensor]:
    """``tensors`` with the experts' matrices in one stack each.

    Files of 2023 have a tensor for each expert, some newer ones gate and up in one::

        blk.0.ffn_up.0.weight, blk.0.ffn_up.1.weight ...  (k, n)               ->  ffn_up_exps (k, n, experts)
        blk.0.ffn_gate_up_exps.weight                     (k, 2 n, experts)    ->  ffn_gate_exps, ffn_up_exps

    Raises:
        CorruptFile: experts that are missing or differ in shape or type, or that are there in two of these ways.
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
                if stem in tensors:
                    raise CorruptFile(
                        f"the experts of {stem} are in {name}, too", where=f"{where}: {stem}", accepted="one of the two"
                    )
                info = TensorInfo(stem, (k, rows // 2, count), tensor.info.quant, tensor_kind(stem))
                begin = tensor.begin + half * halves.shape[1]
                found[stem] = GgufTensor(info, _NO_BYTES, tuple(halves[half::2]), begin)
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
        raws = tuple(parts[i].raw for i in range(len(parts)))
        found[name] = GgufTensor(info, _NO_BYTES, raws, min(part.begin for part in parts.values()))
    return found


def open_gguf(path: Path | str) -> GgufFile:
    """Opens ``path`` and checks its header; no tensor is read. A part of a model stands for all of them.

    Experts appear as one stack of matrices for each of gate, up and down, however the file holds them.

    Raises:
        UserError: no such file, not a regular file, not readable, or parts of the model that are missing.
        CorruptFile: with the file, the byte and the field.
    """
    parts = read_parts(Path(path))
    first, where = parts[0].header, str(parts[0].path)
    architecture = first.metadata.get(Keys.General.ARCHITECTURE)
    if not isinstance(architecture, str) or not architecture:
        found = "missing" if architecture is None else f"{architecture!r}"
        raise CorruptFile(f"{Keys.General.ARCHITECTURE} is {found}", where=where, accepted="a name such as llama")
    tensors: dict[str, GgufTensor] = {}
    before = 0
    for part in parts:
        for record in part.header.tensors:
            tensors[record.name] = GgufTensor(
                TensorInfo(record.name, record.shape, record.traits.name, tensor_kind(record.name)),
                part.data[record.begin : record.begin + record.n_bytes],
                begin=before + record.begin,
            )
        before += part.data.nbytes
    split = (NO, COUNT, TENSORS)  # true of the parts, not of the model
    return GgufFile(
        tuple(part.path for part in parts),
        before,
        architecture,
        MappingProxyType({key: value for key, value in first.metadata.items() if key not in split}),
        MappingProxyType({key: value for key, value in first.types.items() if key not in split}),
        MappingProxyType(stack_experts(tensors, where)),
    )
