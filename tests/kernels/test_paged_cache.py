"""Caches in pages on torch's device cpu: bit by bit what caches side by side hold, whatever lies on other pages."""

from __future__ import annotations

import numpy as np
import pytest

from kbench.core import KV_TYPES
from kbench.kernels import PAGE_TOKENS, PagedCache, PagePool, TorchCache, pages_for

torch = pytest.importorskip("torch")
WINDOW, STEP = 100, 70
PAGES = pages_for(WINDOW + STEP - 1)  # 3


def poison(pool: PagePool) -> None:
    """Pages that are nobody's hold no numbers."""
    nobodys = np.flatnonzero(pool.table.owners == 0)
    for cache in pool.caches.values():
        for stored in (cache.k, cache.v):
            pages = stored.view(len(stored), stored.shape[1] // PAGE_TOKENS, PAGE_TOKENS, stored.shape[2])
            pages[:, nobodys] = 255 if stored.dtype == torch.uint8 else float("nan")


@pytest.mark.parametrize(("heads", "k", "v"), [(2, 64, 64), (1, 96, 0)], ids=["keys and values", "latents"])
@pytest.mark.parametrize("kv", KV_TYPES)
def test_pages_hold_what_rows_side_by_side_do(kv: str, heads: int, k: int, v: int) -> None:
    """Steps of odd lengths around the borders of pages, two laps and more; a fork, and both go on."""
    rng = np.random.default_rng(5)
    pool = PagePool.on("cpu", 2 * PAGES, 2, PAGES, "cache")
    there = pool.add(0, kv, heads, k, v)
    right = TorchCache.empty(kv, heads, PAGES * PAGE_TOKENS, k, v, "cpu", 2)
    assert there.capacity == right.capacity and there.n_bytes == right.n_bytes
    positions = [0, 0]

    def step(lengths: dict[int, int]) -> None:
        poison(pool)
        pool.write([(s, positions[s], positions[s] + n) for s, n in lengths.items()])
        for s, n in lengths.items():
            rows = [torch.from_numpy(rng.standard_normal((heads, n, d)).astype(np.float32)) for d in (k, v) if d]
            found = there.append(s, positions[s], rows, WINDOW)
            wanted = right.append(s, positions[s], rows, WINDOW)
            for a, b in zip(found, wanted, strict=True):
                assert torch.isfinite(a).all() and torch.equal(a, b)
            positions[s] += n

    for n in (1, 62, 1, 1, 63, 64, 1, 70, 65, 3):
        step({0: n})
    pool.table.share(0, 1)
    positions[1] = positions[0]
    for stored in (right.k, right.v):
        stored[1] = stored[0]
    assert pool.table.n_free == PAGES
    for n in (1, 2, 63, 70, 64):
        step({0: 1, 1: n})
    begin, end = positions[1] - WINDOW, positions[1]
    for a, b in zip(there.held(1, begin, end), right.held(1, begin, end), strict=True):
        assert torch.equal(a, b)
    pool.table.release(0)
    pool.table.release(1)
    pool.write([])
    assert pool.table.n_free == 2 * PAGES and (pool.here == -1).all()


def test_layers_of_one_pool_are_copied_together() -> None:
    pool = PagePool.on("cpu", 4, 2, 2, "cache")
    layers = [pool.add(layer, "f32", 1, 8, 8) for layer in range(2)]
    pool.write([(0, 0, 3)])
    rows = [torch.arange(24.0).reshape(1, 3, 8), torch.ones(1, 3, 8)]
    for cache in layers:
        cache.put(0, 0, rows)
    pool.table.share(0, 1)
    pool.write([(1, 3, 4)])
    for cache in layers:
        assert isinstance(cache, PagedCache)
        cache.put(1, 3, [torch.full((1, 1, 8), 7.0)] * 2)
        assert torch.equal(cache.held(1, 0, 3)[0], rows[0]) and torch.equal(cache.held(0, 0, 3)[1], rows[1])
    assert pool.here[0, 0] != pool.here[1, 0] and pool.table.n_free == 2
