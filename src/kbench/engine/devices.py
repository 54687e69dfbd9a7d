"""Which device of this machine stands behind each device that rules name.

Normally each is itself. An *alias* puts one on another: with ``cuda:0=cpu`` a rule file for a GPU runs on a machine
without one. The device keeps its own arena, its own copy of its weights, its own caches and its own queue of work, so
that every transfer, phase switch and overlap happens, and is counted, as it would with the GPU; only who computes is
another. A *host* is a process of a pipeline: its devices are somebody else's to check and to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kbench.core import CPU, Device, InvalidEnvironment, UserError


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """``alias``: device -> device that stands for it, both as on host 0. ``host`` is this process, of ``n_hosts``."""

    alias: Mapping[Device, Device] = field(default_factory=dict)
    host: int = 0
    n_hosts: int = 1

    def physical(self, device: Device) -> Device:
        """What computes for ``device``, on the machine that it belongs to."""
        plain = Device(device.kind, device.index)
        return self.alias.get(plain, plain)

    def is_local(self, device: Device) -> bool:
        """Whether this process runs ``device``."""
        return device.host == self.host

    def has_own_queue(self, device: Device) -> bool:
        """Whether work for ``device`` is queued while this thread goes on; that of the CPU is done at once."""
        return device.kind != "cpu"

    def check(self, device: Device) -> None:
        """Raises InvalidEnvironment where ``device`` cannot run: no such host, or no such device here."""
        if device.host >= self.n_hosts:
            raise InvalidEnvironment(
                f"the rules put a module on {device}, and there "
                + (f"are {self.n_hosts} hosts" if self.n_hosts > 1 else "is one host"),
                accepted=", ".join(f"host{n}" for n in range(self.n_hosts)),
                todo="start one process a host, with RANK and WORLD_SIZE set, e.g. by torchrun",
            )
        if not self.is_local(device) or self.physical(device) == CPU:
            return
        import torch

        actual = self.physical(device)
        if not torch.cuda.is_available():
            raise InvalidEnvironment(
                f"the rules put a module on {device}, and this machine has no CUDA device",
                todo=f"rehearse the rules on the CPU: --alias {device}=cpu; or tune for this machine: "
                "kbench tune MODEL --vram 0",
            )
        count = torch.cuda.device_count()
        if actual.index >= count:
            raise InvalidEnvironment(
                f"the rules put a module on {device}, and this machine has "
                + (f"{count} CUDA devices" if count > 1 else "one CUDA device"),
                accepted=", ".join(f"cuda:{n}" for n in range(count)),
                todo=f"put two on one: --alias {device}=cuda:0",
            )


def parse_alias(texts: Iterable[str], where: str = "--alias") -> dict[Device, Device]:
    """``DEVICE=DEVICE`` texts as a map.

    Raises:
        UserError: no such form, no device, one named twice, the CPU on something else, or an alias of an alias.
    """
    found: dict[Device, Device] = {}
    for text in texts:
        name, _, target = text.partition("=")
        if not name or not target:
            raise UserError(f"{text!r}", where=where, accepted="DEVICE=DEVICE, e.g. cuda:0=cpu")
        device, actual = Device.parse(name, where), Device.parse(target, where)
        if device.host or actual.host:
            raise UserError(f"{text!r}", where=where, accepted="devices without a host: an alias holds on every host")
        if device == CPU:
            raise UserError(f"{text!r}", where=where, accepted="a device other than cpu before the =")
        if device in found:
            raise UserError(f"{device} is given twice", where=where)
        found[device] = actual
    for device, actual in found.items():
        if actual in found:
            raise UserError(
                f"{device} stands on {actual}, which is an alias itself", where=where, accepted="cpu, cuda:N"
            )
    return found
