"""What carries activations from one host to another: NCCL between two GPUs, gloo through host memory elsewhere::

    host 0  cuda:0  x ───────────── NCCL ───────────> x  cuda:0  host 1     each on a GPU of its own
    host 0  cuda:0  x ──> memory ── gloo ──> memory ──> x  cuda:0  host 1   anything else

NCCL knows no tags: what one communicator is told to send arrives in that order. So each two devices have one of their
own in each direction, and a host sends to another in the order in which that one receives (``schedule``).
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbench.core import CPU, Device, InvalidEnvironment, OpCall, UserError

from .devices import DeviceMap
from .schedule import source_of

if TYPE_CHECKING:
    import torch

NCCL, GLOO = "nccl", "gloo"
_SWITCH = "KBENCH_NCCL"
# NCCL ends a process whose receiver waits for longer. It waits within a step only, for other hosts' share of a chunk.
_PATIENCE = datetime.timedelta(hours=1)

Pair = tuple[Device, Device]


@dataclass(frozen=True, slots=True)
class End:
    """A device that activations leave or reach, as its host tells the others: ``gpu`` is a number of the GPU that they
    lie on, 0 where they lie in host memory; ``nccl``: torch has NCCL there, and nobody has switched it off."""

    gpu: int = 0
    nccl: bool = False


def carrier(pair: Pair, src: End, dst: End) -> tuple[str, str]:
    """``NCCL`` or ``GLOO`` for what goes from the first device of ``pair`` to the second, and why not NCCL."""
    for device, end in zip(pair, (src, dst), strict=True):
        if not end.gpu:
            return GLOO, f"on {device} they lie in host memory"
    if src.gpu == dst.gpu:
        return GLOO, "both are the same GPU, which NCCL does not connect with itself"
    for device, end in zip(pair, (src, dst), strict=True):
        if not end.nccl:
            return GLOO, f"host {device.host} has no NCCL: torch was built without it, or {_SWITCH} is 0 there"
    return NCCL, ""


def boundary(calls: Iterable[OpCall]) -> list[Pair]:
    """The pairs of devices of different hosts that values cross between, in an order that every host finds."""
    pairs = {(source_of(call), call.device) for call in calls if call.op == "transfer"}
    return sorted(((src, dst) for src, dst in pairs if src.host != dst.host), key=str)


def end_of(device: Device, devices: DeviceMap, environment: Mapping[str, str]) -> End:
    """What ``device``, one of this process's, is to the others.

    Raises:
        UserError: ``KBENCH_NCCL`` is neither 0 nor 1.
    """
    switch = environment.get(_SWITCH, "1")
    if switch not in ("0", "1"):
        raise UserError(f"{switch!r}", where=_SWITCH, accepted="0 (activations go by gloo), 1 (by NCCL where that can)")
    physical = devices.physical(device)
    if physical == CPU:
        return End()
    import torch
    import torch.distributed as dist

    uuid = str(torch.cuda.get_device_properties(physical.index).uuid)
    number = 1 + int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:7], "little")
    return End(number, switch == "1" and dist.is_nccl_available())


def first_line(error: Exception) -> str:
    """What ``error`` says, without the stack of C++ that torch puts below."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Links:
    """Communicators that take tensors from device to device as they are."""

    def __init__(self, pairs: Sequence[Pair], devices: DeviceMap, backend: str = NCCL) -> None:
        """Connects every one of ``pairs``, which must be the same on all hosts, and sends a number over it: the first
        message makes the two wait for each other, which in the middle of a step each would do in an order of its own.

        Raises:
            InvalidEnvironment: a pair cannot be connected.
        """
        import torch.distributed as dist

        self._dist = dist
        self._groups: dict[Pair, Any] = {}
        # What was sent, by which handle, and the stream that made it: the only one that its memory is given to again.
        self._sending: list[tuple[torch.Tensor, Any, Any]] = []
        for pair in pairs:
            try:
                hosts = [device.host for device in pair]
                self._groups[pair] = dist.new_group(hosts, timeout=_PATIENCE, backend=backend)
                self._greet(pair, devices)
            except (RuntimeError, ValueError) as error:
                raise InvalidEnvironment(
                    f"{backend} cannot connect {pair[0]} with {pair[1]}: {first_line(error)}",
                    where=f"host {devices.host}",
                    todo=f"NCCL_DEBUG=INFO has it say more; {_SWITCH}=0 sends activations by gloo, through host memory",
                ) from None

    def _greet(self, pair: Pair, devices: DeviceMap) -> None:
        import torch

        for mine, does in zip(pair, (self.send, self.receive), strict=True):
            if devices.is_local(mine):
                physical = devices.physical(mine)
                with torch.cuda.device(physical.index) if physical != CPU else contextlib.nullcontext():
                    number = torch.ones(1, device=str(physical))
                    does(number, *pair)
                    self.finish()
                    if number.is_cuda:
                        torch.cuda.synchronize()

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._groups

    def send(self, tensor: torch.Tensor, src: Device, dst: Device) -> None:
        """Sends ``tensor`` behind what its device's current stream was given so far. Nobody may change it."""
        import torch

        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
        handle: Any = self._dist.isend(tensor, dst.host, group=self._groups[src, dst])
        self._sending.append((tensor, handle, stream))

    def receive(self, tensor: torch.Tensor, src: Device, dst: Device) -> None:
        """Fills ``tensor``, before what its device's current stream is given from now on."""
        handle: Any = self._dist.irecv(tensor, src.host, group=self._groups[src, dst])
        handle.wait()

    def finish(self) -> None:
        """Lets go of what was sent: what is done with its memory next is done when it has left. A GPU waits for that,
        not the caller."""
        import torch

        for _, handle, stream in self._sending:
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                handle.wait()
        self._sending.clear()
