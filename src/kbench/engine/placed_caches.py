"""Caches on the devices where attention runs, and what moves when a layer's attention changes its device.

On a GPU they lie in pages: of as many as there are tokens, whichever sequences have them, and of what a fork begins
with as many as its origin has. On the CPU the operating system pages (``KvCache``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kbench.core import CPU, Device, OpCall
from kbench.kernels import Cache, PagePool, Spans, TorchCache, on_tensors, slots
from kbench.model import ModelDescriptor

from .devices import DeviceMap
from .kv_cache import CacheShape, KvCache
from .traffic import CACHE, Traffic

# A layer, and a device that it attends on.
Home = tuple[int, Device]


def attention_devices(calls: Sequence[OpCall]) -> dict[int, Device]:
    """Layer -> the device that its attention runs on."""
    return {int(str(call.attrs["layer"])): call.device for call in calls if "layer" in call.attrs}


def paged_homes(calls: Iterable[OpCall], devices: DeviceMap) -> set[Home]:
    """Where caches lie in pages: on every GPU; and on a device that stands for one, where all that reads a layer's
    cache there does so on tensors, as on a GPU."""
    found: dict[Home, bool] = {}
    for call in calls:
        if "layer" in call.attrs and devices.is_local(call.device):
            home, place = (int(str(call.attrs["layer"])), call.device), devices.physical(call.device)
            like_a_gpu = devices.has_own_queue(call.device) and on_tensors(call.implementation, str(place)) is not None
            found[home] = place != CPU or (like_a_gpu and found.get(home, True))
    return {home for home, paged in found.items() if paged}


class PlacedCaches(KvCache):
    """A ``KvCache`` whose layers lie on devices: one cache a layer and device that attends there in some phase.

    Every device's copy knows how many tokens of it are right. Before a step, rows that only another device has are
    copied from there: after a prefill on one device the first decode on another moves what the prompt made, once.

    Attributes:
        pools: of the caches that lie in pages: those of a device whose layers keep equally much have one.
    """

    def __init__(
        self,
        model: ModelDescriptor,
        shape: CacheShape,
        kv: str,
        homes: Mapping[int, Sequence[Device]],
        devices: DeviceMap,
        paged: Collection[Home] = (),
    ) -> None:
        """``homes``: the devices of this process on which a layer's attention runs; ``paged``: where in pages."""
        self._begin(model, shape, kv)
        self._on: dict[Device, dict[int, Any]] = {}
        self.pools: dict[tuple[Device, int, int], PagePool] = {}
        self._pool_of: dict[Home, PagePool] = {}
        # By sequence, how many tokens of a layer's cache on a device are right there.
        self._right: dict[Home, list[int]] = {}
        # Where the step at hand writes.
        self._written: list[Home] = []
        for layer, places in homes.items():
            for device in places:
                if (layer, device) in paged:
                    pool = self._pool_of[layer, device] = self._pool(layer, device, devices)
                    made: Any = pool.add(layer, kv, model.cached_heads, *self.widths)
                else:
                    made = self._empty(layer)
                self._on.setdefault(device, {})[layer] = made
                self._right[layer, device] = [0] * shape.sequences
        self.caches = self.on(Device("cpu", 0, devices.host))

    def _pool(self, layer: int, device: Device, devices: DeviceMap) -> PagePool:
        n_pages, each = self.shape.pages(self.model, layer)
        key = device, n_pages, each
        if key not in self.pools:
            place, name = str(devices.physical(device)), f"cache of {device}"
            self.pools[key] = PagePool.on(place, n_pages, self.shape.sequences, each, name)
        return self.pools[key]

    def on(self, device: Device) -> dict[int, Cache]:
        """The caches on ``device``, by layer (``PagedCache`` where they lie in pages)."""
        return self._on.get(device, {})

    @property
    def n_bytes(self) -> int:
        return sum(cache.n_bytes for caches in self._on.values() for cache in caches.values())

    def _all(self) -> Iterable[Any]:
        """Those that are not in pages."""
        found = [cache for caches in self._on.values() for cache in caches.values()]
        return [cache for cache in found if isinstance(cache, Cache)]

    def reserve(self, tokens: Mapping[int, int]) -> None:
        super().reserve(tokens)
        for (device, n_pages, each), pool in self.pools.items():
            if n_pages < self.shape.sequences * each:  # otherwise there are as many as can ever be needed
                pool.table.check(
                    (s, min(self._right[layer, device][s] for layer in pool.caches), self._positions[s] + n)
                    for s, n in tokens.items()
                )

    def truncate(self, position: int, sequence: int = 0) -> None:
        highest = self._highest[sequence]
        super().truncate(position, sequence)
        for right in self._right.values():
            right[sequence] = min(right[sequence], position)
        for pool in self.pools.values():
            pool.table.truncate(sequence, position, highest)

    def fork(self, source: int, target: int) -> None:
        """Makes ``target`` a copy of ``source``; what lies in pages is copied when one of them writes to it."""
        super().fork(source, target)
        for right in self._right.values():
            right[target] = right[source]
        for pool in self.pools.values():
            pool.table.share(source, target)

    def bring(self, layers: Mapping[int, Device], spans: Spans, traffic: Traffic) -> None:
        """Makes the caches of ``layers`` ready on their devices for the tokens of ``spans``, which are written next:
        right up to where these begin, and with pages for them.

        Raises:
            UserError: too few pages are free.
        """
        step = spans.tolist()
        here = [home for home in layers.items() if home in self._right]  # others are another process's
        missing = []
        begins: dict[int, dict[int, int]] = {}  # by pool and sequence, where what is written begins
        for layer, device in here:
            right, pool = self._right[layer, device], self._pool_of.get((layer, device))
            if pool is not None and id(pool) not in begins:
                begins[id(pool)] = {sequence: position for sequence, position, _ in step}
            for sequence, position, _ in step:
                if right[sequence] < position:
                    # Of what has left a ring nothing is wanted.
                    begin = max(right[sequence], position - self.shape.slots(self.model, layer))
                    missing.append((layer, device, sequence, begin, position))
                    if pool is not None:
                        first = begins[id(pool)]
                        first[sequence] = min(first[sequence], begin)
        for pool in self.pools.values():  # of others rows may be read, by what forks and cuts have made of their tables
            first = begins.get(id(pool), {})
            pool.write((s, first[s], position + n) for s, position, n in step if s in first)
        for layer, device, sequence, begin, position in missing:
            source = self._source(layer, sequence, position)
            moved = _copy_rows(self._on[source][layer], self._on[device][layer], sequence, begin, position)
            traffic.add(CACHE, source, device, moved)
        self._written = here

    def advance(self, spans: Iterable[Sequence[int]]) -> None:
        """Counts the tokens of a step that is done: they are right where it wrote them."""
        spans = list(spans)
        for home in self._written:
            for sequence, position, n in spans:
                self._right[home][sequence] = position + n
        super().advance(spans)

    def _source(self, layer: int, sequence: int, position: int) -> Device:
        """A device where a layer's cache is right up to ``position``."""
        homes = self._right.items()
        return next(device for (which, device), right in homes if which == layer and right[sequence] >= position)


def _copy_rows(source: Any, target: Any, sequence: int, begin: int, end: int) -> int:
    """Copies tokens ``begin`` to ``end`` of a sequence; returns their bytes."""
    if isinstance(source, Cache) and isinstance(target, Cache):
        where = slots(begin, end, source.k.shape[2])
        for here, there in ((source.k, target.k), (source.v, target.v)):
            there[sequence][:, where] = here[sequence][:, where]
        return sum(int(a[sequence][:, where].nbytes) for a in (source.k, source.v))
    a, b = (TorchCache.over(cache) if isinstance(cache, Cache) else cache for cache in (source, target))
    rows = a.held(sequence, begin, end)
    b.put(sequence, begin, [stored.to(b.k.device) for stored in rows])
    if a.k.is_cuda or b.k.is_cuda:
        import torch

        torch.cuda.synchronize()  # copied on the default stream, read on others
    return sum(stored.numel() * stored.element_size() for stored in rows)
