"""The order in which a process issues the calls of one step, and where values leave and arrive.

A call on an accelerator returns before it is done; one on the CPU does not. So what accelerators can do now is issued
first, and the CPU's work runs meanwhile: shared experts on a GPU beside routed experts on the CPU. Values are sent as
soon as they are made, and waited for as late as possible. Calls on one device alone keep their order.

What goes to another host leaves in the lowered order, which is that in which it is waited for there: not every network
tells messages apart. No host waits for ever: one that waits has issued all that comes earlier in the lowered list.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from kbench.core import Device, OpCall

from .devices import DeviceMap

COMPUTE, SEND, RECEIVE = "compute", "send", "receive"


@dataclass(frozen=True, slots=True)
class Item:
    """Something to issue: a call, or one half of a transfer. ``number`` is the call's place in the lowered list: the
    same in every process."""

    what: str
    call: OpCall
    number: int


def source_of(call: OpCall) -> Device:
    """The device that a transfer takes its value from."""
    return Device.parse(call.problem.text("src"))


def schedule(calls: Sequence[OpCall], devices: DeviceMap) -> list[Item]:
    """What this process issues for ``calls``, in order: a topological order of its part of them."""
    items: list[Item] = []
    for number, call in enumerate(calls):
        if call.op != "transfer":
            if devices.is_local(call.device):
                items.append(Item(COMPUTE, call, number))
            continue
        if devices.is_local(source_of(call)):
            items.append(Item(SEND, call, number))
        if devices.is_local(call.device):
            items.append(Item(RECEIVE, call, number))
    if all(item.what == COMPUTE for item in items):
        queues = {devices.has_own_queue(item.call.device) for item in items}
        if len(queues) < 2:
            return items
    return _ordered(items, devices)


def _ordered(items: Sequence[Item], devices: DeviceMap) -> list[Item]:
    makers: dict[str, int] = {}
    sends: dict[int, int] = {}
    last_to: dict[int, int] = {}
    waiting = [0] * len(items)
    readers: list[list[int]] = [[] for _ in items]
    for index, item in enumerate(items):
        needed = [makers[name] for name in item.call.inputs if name in makers and item.what != RECEIVE]
        if item.what == RECEIVE and item.number in sends:
            needed.append(sends[item.number])
        host = item.call.device.host
        if item.what == SEND and not devices.is_local(item.call.device):
            needed += [last_to[host]] if host in last_to else []
            last_to[host] = index
        for maker in set(needed):
            readers[maker].append(index)
            waiting[index] += 1
        if item.what == SEND:
            sends[item.number] = index
        else:
            makers |= {value.name: index for value in item.call.outputs}
    ready = [(_urgency(items[index], devices), index) for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    ordered: list[Item] = []
    while ready:
        _, index = heapq.heappop(ready)
        ordered.append(items[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (_urgency(items[reader], devices), reader))
    return ordered


def _urgency(item: Item, devices: DeviceMap) -> int:
    """The smaller, the sooner: sends, then what is only queued, then what this thread does itself or waits for."""
    if item.what == SEND:
        return 0
    queued = devices.has_own_queue(item.call.device)
    if item.what == RECEIVE and not devices.is_local(source_of(item.call)):
        queued = False  # it comes over the network, into memory of the CPU first
    return 1 if queued else 2
