"""What the programs of a session share: devices, their queues and thread pools, what carries and what counts values."""

from __future__ import annotations

from typing import Any

from kbench.core import CPU, Device

from .devices import DeviceMap
from .queues import CudaQueue, InlineQueue, Queue, ThreadQueue
from .space import Network
from .traffic import Traffic


class Machine:
    """The devices of this process. Queues and pools are made when something needs them."""

    def __init__(self, devices: DeviceMap, threads: int, network: Network | None = None) -> None:
        self.devices, self.threads, self.network = devices, threads, network
        self.traffic = Traffic()
        self._queues: dict[Device, Queue] = {}
        self._pools: dict[Device, Any] = {}

    def queue(self, device: Device) -> Queue:
        """The work of ``device``."""
        if device not in self._queues:
            physical = self.devices.physical(device)
            if not self.devices.has_own_queue(device):
                self._queues[device] = InlineQueue()
            elif physical == CPU:
                self._queues[device] = ThreadQueue(str(device))
            else:
                self._queues[device] = CudaQueue(str(physical))
        return self._queues[device]

    def pool(self, device: Device) -> Any:
        """The native threads of ``device``. One that is an alias of the CPU has a single one of its own: a pool runs
        one program at a time, and the CPU's programs run beside this device's."""
        if device not in self._pools:
            from kbench.kernels import Pool

            self._pools[device] = Pool(1 if self.devices.has_own_queue(device) else self.threads)
        return self._pools[device]

    def drain(self) -> None:
        """Returns once every queue is done; raises what the first work that failed raised."""
        for queue in self._queues.values():
            queue.drain()
