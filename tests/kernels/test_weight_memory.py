"""Packed matrices share slabs of memory: they do not disturb each other, and the memory goes back."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from kbench.kernels import pack

K = 256


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_matrices_keep_their_rows_while_others_come_and_go() -> None:
    """Sizes from one tile to more than a slab's rest, freed in random order, against gguf's own rows."""
    rng = np.random.default_rng(0)
    order = random.Random(0)
    alive: dict[int, tuple[object, np.ndarray]] = {}
    for number in range(60):
        n = int(rng.integers(1, 3000)) if number % 20 else 40_000
        stored = quants.quantize(rng.standard_normal((n, K)).astype(np.float32), GGMLQuantizationType.Q8_0)
        alive[number] = (pack("Q8_0", stored.reshape(-1), n, K), stored[[0, -1]].copy())
        if len(alive) > 12:
            alive.pop(order.choice(list(alive)))
    for matrix, ends in alive.values():
        rows = matrix.unpack_rows(np.asarray([0, matrix.n - 1], np.int32))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(rows, quants.dequantize(ends, GGMLQuantizationType.Q8_0))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is in use")
def test_the_memory_of_matrices_goes_back_to_the_system() -> None:
    stored = np.zeros(1 << 20, np.uint8)
    n = stored.size // (2 * K)
    before = resident_bytes()
    matrices = [pack("F16", stored, n, K) for _ in range(200)]
    packed = resident_bytes() - before
    # 200 MiB, each page written; nothing but the last slab's last huge page and the list comes on top.
    assert packed + (4 << 20) >= 200 << 20 and packed <= 210 << 20
    del matrices
    gc.collect()
    # What may stay is one slab of 64 MiB, where an earlier test's matrix lives in it.
    assert resident_bytes() - before <= 64 << 20
