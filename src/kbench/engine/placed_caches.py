"""Caches on the devices where attention runs, and what moves when a layer's attention changes its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbench.core import CPU, Device, OpCall, UserError
from kbench.kernels import Cache, TorchCache, empty_rows
from kbench.model import ModelDescriptor

from .devices import DeviceMap
from .kv_cache import KvCache
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
        capacity: int,
        kv: str,
        homes: Mapping[int, Sequence[Device]],
        devices: DeviceMap,
    ) -> None:
        """``homes``: the devices of this process on which a layer's attention runs."""
        if capacity < 1:
            raise UserError(f"a context of {capacity} tokens", where="context", accepted="at least 1 token")
        self.capacity, self.kv, self.position = capacity, kv, 0
        k, v = (model.head_dim,) * 2 if model.mla is None else (sum(model.cached_widths), 0)
        heads = model.cached_heads
        self._on: dict[Device, dict[int, Cache]] = {}
        self._right: dict[tuple[int, Device], int] = {}
        for layer, places in homes.items():
            for device in places:
                physical = devices.physical(device)
                if physical == CPU:
                    made: Any = Cache(empty_rows(kv, heads, capacity, k), empty_rows(kv, heads, capacity, v), kv)
                else:
                    made = TorchCache.empty(kv, heads, capacity, k, v, str(physical))
                self._on.setdefault(device, {})[layer] = made
                self._right[layer, device] = 0
        self.caches = self.on(Device("cpu", 0, devices.host))

    def on(self, device: Device) -> dict[int, Cache]:
        """The caches on ``device``, by layer (``TorchCache`` where that is not the CPU)."""
        return self._on.get(device, {})

    @property
    def n_bytes(self) -> int:
        return sum(cache.n_bytes for caches in self._on.values() for cache in caches.values())

    def truncate(self, position: int) -> None:
        super().truncate(position)
        self._right = {key: min(right, position) for key, right in self._right.items()}

    def bring(self, layers: Mapping[int, Device], n_tokens: int, traffic: Traffic) -> None:
        """Makes the caches of ``layers`` right up to ``position`` on their devices, which add ``n_tokens`` next."""
        for layer, device in layers.items():
            if (layer, device) not in self._right:  # another process has it
                continue
            right = self._right[layer, device]
            if right < self.position:
                source = next(
                    other for (which, other), n in self._right.items() if which == layer and n >= self.position
                )
                moved = _copy_rows(self._on[source][layer], self._on[device][layer], right, self.position)
                traffic.add(CACHE, source, device, moved)
            self._right[layer, device] = self.position + n_tokens


def _copy_rows(source: Any, target: Any, begin: int, end: int) -> int:
    """Copies tokens ``begin`` to ``end``; returns their bytes."""
    if isinstance(source, Cache) and isinstance(target, Cache):
        for here, there in ((source.k, target.k), (source.v, target.v)):
            there[:, :, begin:end] = here[:, :, begin:end]
        return int(source.k[:, :, begin:end].nbytes + source.v[:, :, begin:end].nbytes)
    a, b = (TorchCache.over(cache) if isinstance(cache, Cache) else cache for cache in (source, target))
    moved = 0
    for stored, target_rows in ((a.k, b.k), (a.v, b.v)):
        rows = stored[:, :, begin:end]
        target_rows[:, :, begin:end].copy_(rows)
        moved += rows.numel() * rows.element_size()
    if a.k.is_cuda or b.k.is_cuda:
        import torch

        torch.cuda.synchronize()  # copied on the default stream, read on others
    return moved
