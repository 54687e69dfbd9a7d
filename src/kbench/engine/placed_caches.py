"""Caches on the devices where attention runs, and what moves when a layer's attention changes its device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbench.core import CPU, Device, OpCall
from kbench.kernels import Cache, Spans, TorchCache, slots
from kbench.model import ModelDescriptor

from .devices import DeviceMap
from .kv_cache import CacheShape, KvCache
from .traffic import CACHE, Traffic


def attention_devices(calls: Sequence[OpCall]) -> dict[int, Device]:
    """Layer -> the device that its attention runs on."""
    return {int(str(call.attrs["layer"])): call.device for call in calls if "layer" in call.attrs}


class PlacedCaches(KvCache):
    """A ``KvCache`` whose layers lie on devices: one cache a layer and device that attends there in some phase.

    Every device's copy knows how many tokens of it are right. Before a step, rows that only another device has are
    copied from there: after a prefill on one device the first decode on another moves what the prompt made, once.
    """

    def __init__(
        self,
        model: ModelDescriptor,
        shape: CacheShape,
        kv: str,
        homes: Mapping[int, Sequence[Device]],
        devices: DeviceMap,
    ) -> None:
        """``homes``: the devices of this process on which a layer's attention runs."""
        self._begin(model, shape, kv)
        self._on: dict[Device, dict[int, Any]] = {}
        # (layer, device) -> by sequence, how many tokens of it are right there.
        self._right: dict[tuple[int, Device], list[int]] = {}
        for layer, places in homes.items():
            for device in places:
                physical = devices.physical(device)
                if physical == CPU:
                    made: Any = self._empty(layer)
                else:
                    room, (k, v) = shape.slots(model, layer), self.widths
                    made = TorchCache.empty(kv, model.cached_heads, room, k, v, str(physical), shape.sequences)
                self._on.setdefault(device, {})[layer] = made
                self._right[layer, device] = [0] * shape.sequences
        self.caches = self.on(Device("cpu", 0, devices.host))

    def on(self, device: Device) -> dict[int, Cache]:
        """The caches on ``device``, by layer (``TorchCache`` where that is not the CPU)."""
        return self._on.get(device, {})

    def _all(self) -> Iterable[Any]:
        return [cache for caches in self._on.values() for cache in caches.values()]

    def truncate(self, position: int, sequence: int = 0) -> None:
        super().truncate(position, sequence)
        for right in self._right.values():
            right[sequence] = min(right[sequence], position)

    def fork(self, source: int, target: int) -> None:
        super().fork(source, target)
        for right in self._right.values():
            right[target] = right[source]

    def bring(self, layers: Mapping[int, Device], spans: Spans, traffic: Traffic) -> None:
        """Makes the caches of ``layers`` right up to where ``spans`` begin on their devices, which add those next."""
        for layer, device in layers.items():
            if (layer, device) not in self._right:  # another process has it
                continue
            for sequence, position, n in spans.tolist():
                right = self._right[layer, device][sequence]
                if right < position:
                    source = next(
                        other
                        for (which, other), known in self._right.items()
                        if which == layer and known[sequence] >= position
                    )
                    # Of what has left a ring nothing is wanted.
                    begin = max(right, position - self.shape.slots(self.model, layer))
                    moved = _copy_rows(self._on[source][layer], self._on[device][layer], sequence, begin, position)
                    traffic.add(CACHE, source, device, moved)
                self._right[layer, device][sequence] = position + n


def _copy_rows(source: Any, target: Any, sequence: int, begin: int, end: int) -> int:
    """Copies tokens ``begin`` to ``end`` of a sequence; returns their bytes."""
    where = slots(begin, end, source.k.shape[2])
    if isinstance(source, Cache) and isinstance(target, Cache):
        for here, there in ((source.k, target.k), (source.v, target.v)):
            there[sequence][:, where] = here[sequence][:, where]
        return sum(int(a[sequence][:, where].nbytes) for a in (source.k, source.v))
    a, b = (TorchCache.over(cache) if isinstance(cache, Cache) else cache for cache in (source, target))
    moved = 0
    for stored, target_rows in ((a.k, b.k), (a.v, b.v)):
        rows = stored[sequence][:, where]
        target_rows[sequence][:, where] = rows.to(target_rows.device)
        moved += rows.numel() * rows.element_size()
    if a.k.is_cuda or b.k.is_cuda:
        import torch

        torch.cuda.synchronize()  # copied on the default stream, read on others
    return moved
