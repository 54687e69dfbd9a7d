"""A model over several processes: each runs the modules of its own devices, and activations cross.

Rules name the process in front of the device: ``host1/cuda:0``, ``host1/cpu``; a device without one is host 0's. Every
process reads the same file and the same rules, lowers the same calls, and loads the weights of its own alone. Host 0
has the conversation: before each step it tells the others which program to run on which tokens::

    host 0   tell │ embedding, layers 0..n │ send x ────────┐                     ┌─> logits, sampling
    host 1        │                        │ wait for tell  └─> layers n.., norm, lm_head │ send logits

The launcher's variables are torchrun's: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``. What host 0 tells
goes by gloo, in host memory; activations do too, but between two GPUs that NCCL connects (``links``). Nothing is
encrypted or authenticated: a network of one's own.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbench.core import Device, InvalidEnvironment, OpCall, Phase, UserError
from kbench.kernels import Spans

from .devices import DeviceMap
from .kept import KEEPS
from .kv_cache import KvCache
from .links import GLOO, NCCL, End, Links, Pair, boundary, carrier, end_of, first_line

if TYPE_CHECKING:
    import torch

TokenArray = npt.NDArray[np.int32]
_BUILD, _RUN, _STOP, _FORK = 1, 2, 3, 4
# command, and four numbers that it needs
_HEADER = 5
_PHASES, _LOGITS = tuple(Phase), ("last", "all")
# Somebody may think for a while before the next message; a host that died is noticed at once.
_PATIENCE = datetime.timedelta(days=7)

Build = Callable[[Phase, int, str, str], Any]


def digest(calls: Sequence[OpCall]) -> int:
    """A number that is the same in processes that lowered the same calls, whatever runs them."""
    text = repr(
        [(c.op, c.problem.key, str(c.device), c.inputs, c.weights, c.attrs.get("experts", ())) for c in calls]
    )  # fmt: skip
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


class HostGroup:
    """The processes of a pipeline. ``host`` is this one, of ``n_hosts``."""

    def __init__(self, host: int, n_hosts: int) -> None:
        """Meets the others, at ``MASTER_ADDR`` and ``MASTER_PORT``.

        Raises:
            InvalidEnvironment: they cannot be reached.
        """
        import torch.distributed as dist

        self.host, self.n_hosts, self._dist, self._open = host, n_hosts, dist, True
        self._sending: list[tuple[Any, Any]] = []
        self._links: Links | None = None
        self._n_programs = 0
        try:
            dist.init_process_group("gloo", rank=host, world_size=n_hosts, timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise InvalidEnvironment(
                f"the other hosts cannot be reached: {first_line(error)}",
                where="MASTER_ADDR, MASTER_PORT",
                todo="start one process a host, e.g. torchrun --nproc-per-node 2 --no-python kbench generate ...",
            ) from None

    def connect(
        self, calls: Sequence[OpCall], devices: DeviceMap, environment: Mapping[str, str] = os.environ
    ) -> dict[Pair, tuple[str, str]]:
        """Before weights are read: makes sure that every host lowered ``calls``, and connects those GPUs that NCCL can.

        Returns:
            For each two devices that values cross between: what carries them, and why it is not NCCL if it is not.

        Raises:
            UserError: another host has another model, or other rules or options.
            InvalidEnvironment: NCCL cannot connect two; another host has gone.
        """
        self._agree(digest(calls))
        pairs = boundary(calls)
        ends = self._ends(pairs, devices, environment)
        carriers = {pair: carrier(pair, ends[pair[0]], ends[pair[1]]) for pair in pairs}
        direct = [pair for pair, (name, _) in carriers.items() if name != GLOO]
        if direct:
            # Without them nobody listens any more: close would wait for the others.
            self._open = False
            self._links = Links(direct, devices, NCCL)
            self._open = True
        return carriers

    def _agree(self, mine: int) -> None:
        import torch

        told = [torch.zeros(1, dtype=torch.int64) for _ in range(self.n_hosts)]
        with _others():
            self._dist.all_gather(told, torch.tensor([mine]))
        others = [host for host, number in enumerate(told) if int(number) != int(told[0])]
        if others:
            self._leave()
            raise _another_model(others)

    def _ends(self, pairs: Sequence[Pair], devices: DeviceMap, environment: Mapping[str, str]) -> dict[Device, End]:
        """What each device of ``pairs`` is, as its host tells."""
        import torch

        found = list(dict.fromkeys(device for pair in pairs for device in pair))
        rows = np.zeros((len(found), 2), np.int64)
        for row, device in zip(rows, found, strict=True):
            if devices.is_local(device):
                end = end_of(device, devices, environment)
                row[:] = end.gpu, end.nccl
        if found:
            with _others():  # a sum of what one host knows and zeros of the others
                self._dist.all_reduce(torch.from_numpy(rows))
        return {device: End(gpu, bool(nccl)) for device, (gpu, nccl) in zip(found, rows.tolist(), strict=True)}

    def direct(self, src: Device, dst: Device) -> bool:
        return self._links is not None and (src, dst) in self._links

    def send_tensor(self, tensor: torch.Tensor, src: Device, dst: Device) -> None:
        assert self._links is not None
        self._links.send(tensor, src, dst)

    def receive_tensor(self, tensor: torch.Tensor, src: Device, dst: Device) -> None:
        assert self._links is not None
        with _others():
            self._links.receive(tensor, src, dst)

    def send(self, array: npt.NDArray[Any], host: int, tag: int) -> None:
        import torch

        message = torch.from_numpy(np.ascontiguousarray(array))
        with _others():
            self._sending.append((self._dist.isend(message, host, tag=tag), message))

    def receive(self, array: npt.NDArray[Any], host: int, tag: int) -> None:
        import torch

        with _others():
            self._dist.recv(torch.from_numpy(array), host, tag=tag)

    def finish(self) -> None:
        """Returns once everything that was sent from host memory has left."""
        with _others():
            for handle, _ in self._sending:
                handle.wait()
            if self._links is not None:
                self._links.finish()
        self._sending.clear()

    def announce(
        self, phase: Phase, tokens: int, logits: str, keep: str, calls: Sequence[OpCall]
    ) -> Callable[[TokenArray, Spans], None]:
        """Host 0: has the others build a program; returns what has them run it."""
        number, self._n_programs = self._n_programs, self._n_programs + 1
        kind = _PHASES.index(phase) + 2 * _LOGITS.index(logits) + 4 * KEEPS.index(keep)
        self._tell(_BUILD, kind, tokens, digest(calls))

        def run(ids: TokenArray, spans: Spans) -> None:
            self._tell(_RUN, number, len(spans), len(ids))
            self._broadcast(ids.copy())
            self._broadcast(spans.copy())

        return run

    def fork(self, source: int, target: int) -> None:
        """Host 0: has the others make sequence ``target`` a copy of ``source``. Tokens that host 0 has forgotten
        they hold until a step tells them, in both."""
        self._tell(_FORK, source, target, 0)

    def close(self) -> None:
        """Host 0: ends the others' ``serve``. Leaves the group."""
        if self._open:
            if not self.host:
                with contextlib.suppress(InvalidEnvironment):  # those that have gone need not be told
                    self._tell(_STOP, 0, 0, 0)
            self._leave()

    def _leave(self) -> None:
        self._open = False
        self._dist.destroy_process_group()

    def _tell(self, command: int, *numbers: int) -> None:
        self._broadcast(np.array([command, *numbers, 0], np.int64))

    def _broadcast(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        import torch

        with _others():
            self._dist.broadcast(torch.from_numpy(array), 0)
        return array

    def serve(self, build: Build, cache: KvCache) -> None:
        """Other hosts: does what host 0 says until it closes the group.

        Raises:
            UserError: host 0 has another model, or other rules or options.
        """
        programs: list[Any] = []
        while True:
            command, first, second, third, _ = self._broadcast(np.zeros(_HEADER, np.int64)).tolist()
            if command == _STOP:
                break
            if command == _BUILD:
                phase, logits, keep = _PHASES[first % 2], _LOGITS[first // 2 % 2], KEEPS[first // 4]
                programs.append(build(phase, second, logits, keep))
                if programs[-1].digest != third:
                    raise _another_model([self.host])
                continue
            if command == _FORK:
                cache.fork(first, second)
                continue
            ids = self._broadcast(np.zeros(third, np.int32))
            spans = self._broadcast(np.zeros((second, 3), np.int64))
            for sequence, position, _ in spans.tolist():
                # Host 0 has asked whether that can be.
                if position < cache.position_of(sequence):
                    cache.truncate(position, sequence)
            programs[first].run(ids, spans)
            cache.advance(spans.tolist())
        self._leave()


def _another_model(hosts: Sequence[int]) -> UserError:
    names = ", ".join(map(str, hosts))
    return UserError(
        f"host {names} would run another model than host 0", accepted="the same file, rules and options on every host"
    )


@contextlib.contextmanager
def _others() -> Iterator[None]:
    """Around what needs the other hosts: that one of them has ended is no error of this one's."""
    try:
        yield
    except RuntimeError as error:
        raise InvalidEnvironment(
            f"another host has ended: {first_line(error)}",
            todo="what it printed says why; start all of them again",
        ) from None


def join_hosts(environment: Mapping[str, str] = os.environ) -> HostGroup | None:
    """The group that a launcher started this process in; None where it started alone.

    Raises:
        UserError, InvalidEnvironment: variables that make no sense; others that cannot be reached.
    """
    numbers = {}
    for name in ("RANK", "WORLD_SIZE"):
        text = environment.get(name, "0" if name == "RANK" else "1")
        if not (text.isascii() and text.isdecimal() and len(text) < 7):
            raise UserError(f"{text!r}", where=name, accepted="a whole number")
        numbers[name] = int(text)
    host, n_hosts = numbers["RANK"], numbers["WORLD_SIZE"]
    if n_hosts < 2:
        return None
    if host >= n_hosts:
        raise UserError(f"{host}", where="RANK", accepted=f"0..{n_hosts - 1}")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise UserError("not set", where=", ".join(missing), accepted="where host 0 listens, e.g. 127.0.0.1 and 29500")
    return HostGroup(host, n_hosts)
