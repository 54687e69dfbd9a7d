"""One device's memory for the values of a program, and the two halves of a transfer between such memories.

A transfer is a copy out of the sender's arena, in the order of the sender's work, and one into the receiver's arena,
in the order of the receiver's work. What lies between belongs to neither: both may go on and reuse their bytes::

    src queue   ... make v │ staging = v │ ...                  dst queue  ... │ wait │ v@dst = staging │ use v@dst ...
                                         └────────── mark ──────────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from kbench.core import CPU, Device, OpCall, Value

from .queues import Mark, Queue
from .traffic import VALUES, Traffic

if TYPE_CHECKING:
    import torch

TokenArray = npt.NDArray[np.int32]
# A cache line, and the widest vector register: what native kernels require of the arena.
ALIGNMENT = 64
# float32 and int32: the only types that values have.
ELEMENT_BYTES = 4
_DTYPES: dict[str, type[np.generic]] = {"f32": np.float32, "i32": np.int32}


def aligned_buffer(n_bytes: int) -> npt.NDArray[np.uint8]:
    """``n_bytes`` of zeros that start at a multiple of the arena's alignment."""
    raw = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + n_bytes]


def pinned_buffer(n_bytes: int) -> npt.NDArray[np.uint8]:
    """The same in page-locked memory. Needs a GPU."""
    import torch

    raw: npt.NDArray[np.uint8] = torch.zeros(n_bytes + ALIGNMENT, dtype=torch.uint8, pin_memory=True).numpy()
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + n_bytes]


class Space:
    """The arena of ``device``, in memory of ``physical``: numpy where that is the CPU, a torch tensor elsewhere."""

    def __init__(self, device: Device, physical: Device, queue: Queue, n_bytes: int, pinned: bool = False) -> None:
        """``pinned``: in host memory that the system does not move, which a GPU copies from and to while others go
        on."""
        self.device, self.physical, self.queue, self.n_bytes = device, physical, queue, n_bytes
        self.in_host_memory = physical == CPU
        self.buffer: Any
        if self.in_host_memory:
            self.buffer = pinned_buffer(n_bytes) if pinned else aligned_buffer(n_bytes)
        else:
            import torch

            self.buffer = torch.zeros(n_bytes, dtype=torch.uint8, device=str(physical))


@dataclass(slots=True)
class Slot:
    """A value's place in an arena."""

    space: Space
    offset: int
    value: Value

    def n_bytes(self, n_tokens: int) -> int:
        rows = 1 if self.value.rows == "one" else n_tokens
        return rows * self.value.width * ELEMENT_BYTES

    def view(self, n_tokens: int) -> npt.NDArray[Any]:
        """In host memory."""
        flat = self.space.buffer[self.offset : self.offset + self.n_bytes(n_tokens)].view(_DTYPES[self.value.dtype])
        array: npt.NDArray[Any] = flat.reshape(-1, self.value.width)
        return array

    def tensor(self, n_tokens: int) -> torch.Tensor:
        """On the space's device."""
        import torch

        if self.space.in_host_memory:
            return torch.from_numpy(self.view(n_tokens))
        dtype = torch.float32 if self.value.dtype == "f32" else torch.int32
        flat = self.space.buffer[self.offset : self.offset + self.n_bytes(n_tokens)].view(dtype)
        tensor: torch.Tensor = flat.reshape(-1, self.value.width)
        return tensor

    def copy(self, n_tokens: int) -> npt.NDArray[Any]:
        """A copy in host memory."""
        if self.space.in_host_memory:
            return np.array(self.view(n_tokens))
        array: npt.NDArray[Any] = self.tensor(n_tokens).cpu().numpy()
        return array


class Network(Protocol):
    """What carries values between hosts; ``tag`` tells the transfers of one step apart."""

    def send(self, array: npt.NDArray[Any], host: int, tag: int) -> None:
        """Returns at once; ``array`` is not changed afterwards."""

    def receive(self, array: npt.NDArray[Any], host: int, tag: int) -> None:
        """Returns once ``array`` is filled."""

    def direct(self, src: Device, dst: Device) -> bool:
        """Whether tensors go from ``src`` to ``dst`` as they are, not through host memory."""

    def send_tensor(self, tensor: torch.Tensor, src: Device, dst: Device) -> None:
        """Queues sending behind the device's work so far; ``tensor`` is not changed afterwards."""

    def receive_tensor(self, tensor: torch.Tensor, src: Device, dst: Device) -> None:
        """Queues filling ``tensor`` before the device's work from now on. In the order in which they were sent."""

    def finish(self) -> None:
        """Returns once everything that was sent from host memory has left."""


class Transfer:
    """A transfer of which this process does one half or both."""

    def __init__(
        self,
        call: OpCall,
        number: int,
        slots: Mapping[str, Slot],
        src: Device,
        traffic: Traffic,
        network: Network | None,
    ) -> None:
        """``slots`` hold the value's places in this process; ``number`` is the same in every process."""
        self.call, self._number, self._src, self._dst = call, number, src, call.device
        self._from, self._to = slots.get(call.inputs[0]), slots.get(call.outputs[0].name)
        self._traffic, self._network = traffic, network
        self._direct = network is not None and network.direct(self._src, self._dst)
        self._staging: Any = None
        self._mark: Mark | None = None

    def send(self, n_tokens: int) -> None:
        slot = self._from
        assert slot is not None
        queue = slot.space.queue
        if self._direct:
            queue.submit(lambda: self._send_tensor(slot, n_tokens))
            self._traffic.add(VALUES, self._src, self._dst, slot.n_bytes(n_tokens))
            return
        to = self._to.space if self._to is not None else None
        if slot.space.in_host_memory and (to is None or to.in_host_memory):
            staging = np.empty_like(slot.view(n_tokens))
            self._staging = staging
            queue.submit(lambda: np.copyto(staging, slot.view(n_tokens)))
        else:
            self._stage_tensor(slot, to, n_tokens)
        self._mark = queue.mark()
        if to is None:  # to another host
            assert self._network is not None
            self._mark.block()
            array = self._staging if isinstance(self._staging, np.ndarray) else self._staging.numpy()
            self._network.send(array, self._dst.host, self._number)
            self._traffic.add(VALUES, self._src, self._dst, array.nbytes)

    def _send_tensor(self, slot: Slot, n_tokens: int) -> None:
        assert self._network is not None
        # A copy: the arena's bytes are others' soon, and it takes as long as the receiver until they have left.
        self._network.send_tensor(slot.tensor(n_tokens).clone(), self._src, self._dst)

    def _receive_tensor(self, slot: Slot, n_tokens: int) -> None:
        assert self._network is not None
        self._network.receive_tensor(slot.tensor(n_tokens), self._src, self._dst)

    def _stage_tensor(self, slot: Slot, to: Space | None, n_tokens: int) -> None:
        """Between a GPU and the host through pinned memory, between GPUs through memory of the sender."""
        import torch

        source = slot.tensor(n_tokens)
        through_host = to is None or to.in_host_memory or slot.space.in_host_memory
        if through_host:
            staging = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            slot.space.queue.submit(lambda: _ignore(staging.copy_(slot.tensor(n_tokens), non_blocking=True)))
        else:
            made: list[torch.Tensor] = []
            slot.space.queue.submit(lambda: made.append(slot.tensor(n_tokens).clone()))
            staging = made[0]
        self._staging = staging

    def receive(self, n_tokens: int) -> None:
        slot = self._to
        assert slot is not None
        queue = slot.space.queue
        if self._direct:
            queue.submit(lambda: self._receive_tensor(slot, n_tokens))
            self._traffic.add(VALUES, self._src, self._dst, slot.n_bytes(n_tokens))
            return
        if self._from is None:  # from another host
            assert self._network is not None
            staging = np.empty(slot.n_bytes(n_tokens), np.uint8).view(_DTYPES[slot.value.dtype])
            staging = staging.reshape(-1, slot.value.width)
            self._network.receive(staging, self._src.host, self._number)
        else:
            assert self._mark is not None
            staging = self._staging
            queue.wait(self._mark)
        self._staging = self._mark = None
        self._traffic.add(VALUES, self._src, self._dst, slot.n_bytes(n_tokens))
        queue.submit(lambda: _fill(slot, staging, n_tokens))

    def __repr__(self) -> str:
        return f"{self.call.inputs[0]}: {self._src} -> {self._dst}"


def _fill(slot: Slot, staging: Any, n_tokens: int) -> None:
    if isinstance(staging, np.ndarray):
        if slot.space.in_host_memory:
            np.copyto(slot.view(n_tokens), staging)
            return
        import torch

        staging = torch.from_numpy(staging)
    target = slot.tensor(n_tokens)
    if staging.is_cuda and target.is_cuda:
        # Made on the sender's stream, read on this one: the allocator must not give it away before.
        import torch

        staging.record_stream(torch.cuda.current_stream(target.device))
    target.copy_(staging, non_blocking=target.is_cuda)


def _ignore(_: object) -> None:
    return None
