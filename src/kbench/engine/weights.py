"""Weights as the implementations want them, each packed once."""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kbench.core import INJECTED, OpCall, TensorInfo, Unsupported, quant
from kbench.kernels import (
    Implementation,
    Prepared,
    RoundingError,
    TorchDevice,
    WeightData,
    expert_subset,
    experts_of,
    implementation,
    left_in_file,
    on_tensors,
    packing,
    rounding_errors,
)
from kbench.model import GgufFile

from .devices import DeviceMap

# (bytes of the file that are packed, bytes to pack)
Progress = Callable[[int, int], None]

_Key = tuple[str, str, tuple[str, ...], str, tuple[int, ...]]

# Native layouts pad rows to full panels, and widen some types' scales to whole lines: bytes packed per bytes stored,
# at most (a row of one block).
_PANEL_ROWS = 16
_WIDENED = {"Q3_K": (58, 55), "Q4_K": (37, 36), "Q5_K": (45, 44), "Q6_K": (106, 105), "IQ4_XS": (35, 34)}


def _key(call: OpCall) -> _Key:
    """What decides how weights are packed. A native embedding reads the matrix that a tied head multiplies with;
    elsewhere an embedding keeps its stored rows."""
    native = call.implementation.startswith("cpu.")
    form = call.op if call.op == "embedding" else ""
    # MLA reads one tensor as several stacks of matrices.
    if call.op == "head_linear":
        form = call.problem.replace(tokens=1).key
    elif call.op == "mla_decompressed":
        form = call.problem.replace(tokens=1, context=1, kv="f32").key
    form = "" if native and form == "embedding" else form
    # Every device has its own, whatever it is an alias of; all that is the CPU's is the same.
    home = "" if call.device.kind == "cpu" else str(call.device)
    return (packing(call.implementation, call.block), form, call.weights, home, experts_of(call))


class WeightStore:
    """Packs the tensors of ``gguf`` for the calls that use them, and keeps them; sessions may share one."""

    def __init__(self, gguf: GgufFile, devices: DeviceMap | None = None) -> None:
        self.gguf, self.devices = gguf, devices or DeviceMap()
        self._prepared: dict[_Key, Prepared] = {}

    @property
    def n_bytes(self) -> int:
        """Bytes of everything packed so far."""
        return sum(prepared.n_bytes for prepared in self._prepared.values())

    @property
    def rounded(self) -> tuple[RoundingError, ...]:
        """Of the tensors that were rounded anew, in the order in which they were packed."""
        return tuple(error for prepared in self._prepared.values() for error in rounding_errors(prepared))

    def missing(self, calls: Iterable[OpCall], besides: Iterable[OpCall] = ()) -> list[OpCall]:
        """One call for each packing that is not there yet, in the files' order: disks like to be read forwards. What
        ``besides`` need counts as there."""
        found: dict[_Key, OpCall] = {}
        there = {_key(call) for call in besides}
        for call in calls:
            if call.op in (INJECTED, "transfer"):  # its operator reads what it wants
                continue
            key = _key(call)
            if key not in self._prepared and key not in there:
                found.setdefault(key, call)
        return sorted(found.values(), key=self._place)

    def _place(self, call: OpCall) -> int:
        return min((self.gguf.tensors[name].begin for name in call.weights), default=0)

    def estimate(self, calls: Iterable[OpCall], besides: Iterable[OpCall] = ()) -> int:
        """Bytes that packing what is ``missing`` will take, never much too low; what stays in the file takes none.

        Somebody's own operator is taken to keep the weights of what it replaces as they are stored.
        """
        calls = list(calls)
        own = dict.fromkeys(name for call in calls if call.op == INJECTED for name in call.weights)
        return sum(self.gguf.tensors[name].info.n_bytes for name in own) + sum(
            _packed_bytes(call, info, self._packer(call))
            for call in self.missing(calls, besides)
            for info in self._infos(call)
        )

    def prepare(self, calls: Iterable[OpCall], progress: Progress | None = None) -> int:
        """Packs what is missing; returns the bytes of the file that were read for it.

        Raises:
            Unsupported: a tensor of a type or shape that its implementation cannot read; named.
        """
        todo = self.missing(calls)
        total = sum(info.n_bytes for call in todo for info in self._infos(call))
        done = 0
        for call in todo:
            tensors, experts = [self.gguf.tensors[name] for name in call.weights], experts_of(call)
            weights = [WeightData(t.info.name, t.info.quant, t.info.shape, t.raw, t.parts) for t in tensors]
            if experts:
                weights = [expert_subset(weight, experts) for weight in weights]
            item = self._packer(call)
            try:
                self._prepared[_key(call)] = item.prepare(call.problem, weights, call.block)
            except Unsupported as error:  # implementations know no file
                where = error.where or f"{self.gguf.path}: {', '.join(call.weights)}"
                raise Unsupported(error.found, where=where, accepted=error.accepted, todo=error.todo) from None
            for tensor in tensors:
                for piece in tensor.pieces:
                    _drop_pages(piece)
            done += sum(info.n_bytes for info in self._infos(call))
            if progress is not None and tensors:
                progress(done, total)
        return total

    def _infos(self, call: OpCall) -> list[TensorInfo]:
        """What ``call`` reads of the file: of a stack of experts perhaps some."""
        infos, n_experts = self.infos(call.weights), len(experts_of(call))
        if not n_experts:
            return infos
        return [dataclasses.replace(info, shape=(*info.shape[:-1], n_experts)) for info in infos]

    def _packer(self, call: OpCall) -> Implementation:
        """What packs for ``call``: torch by the device that it computes on."""
        place = str(self.devices.physical(call.device))
        found = on_tensors(call.implementation, place) if self.devices.has_own_queue(call.device) else None
        return found or implementation(call.implementation)

    def release(self, calls: Iterable[OpCall]) -> None:
        """Forgets the weights of ``calls``."""
        for call in calls:
            self._prepared.pop(_key(call), None)

    def of(self, call: OpCall) -> Prepared:
        """The packed weights of ``call``; they must have been prepared."""
        return self._prepared[_key(call)]

    def infos(self, names: Sequence[str]) -> list[TensorInfo]:
        return [self.gguf.tensors[name].info for name in names]


def _packed_bytes(call: OpCall, info: TensorInfo, packer: Implementation) -> int:
    if call.implementation.startswith("cpu."):
        k, rows, count = (*info.shape, 1, 1)[:3]
        quant_name, turned = info.quant, False  # what is stored the other way round is turned, and stored anew
        if call.op == "head_linear" and len(info.shape) == 2:  # one half of kv_b, perhaps in another type
            turned = call.problem.integer("k") != info.shape[0]
            count, rows, k = (call.problem.integer(name) for name in ("heads", "n", "k"))
            quant_name = call.problem.text("quant")
        elif call.op == "mla_decompressed" and len(info.shape) == 3 and info.name.endswith("attn_k_b.weight"):
            k, rows, quant_name, turned = rows, k, call.problem.text("quant_k"), True
        elif len(info.shape) == 1:  # a vector, in float32
            return 4 * k
        elif call.op == "moe_experts" and len(info.shape) == 2:  # a vector for each expert
            return 4 * math.prod(info.shape)
        if not turned and left_in_file(call.implementation, call.block, quant_name):
            return 0
        widened, stored = _WIDENED.get(quant_name, (1, 1))
        padded = -(-rows // _PANEL_ROWS) * _PANEL_ROWS
        return -(-count * padded * quant(quant_name).row_bytes(k) * widened // stored)
    device = packer if isinstance(packer, TorchDevice) and packer.place != "cpu" else None
    if device is not None:
        return device.stored_bytes(call.problem, info.quant, info.shape)
    return info.n_bytes if call.op == "embedding" else 4 * math.prod(info.shape)


def _drop_pages(raw: npt.NDArray[np.uint8]) -> None:
    """Lets go of the file's pages under ``raw``: packed weights and their source need not both be in memory.

    Pages that are read again come back from the file; only whole pages inside the tensor are dropped.
    """
    mapped = getattr(raw, "_mmap", None)
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base = np.frombuffer(mapped, dtype=np.uint8).ctypes.data
    begin = raw.ctypes.data - base
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (begin + raw.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)
