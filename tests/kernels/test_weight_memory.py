"""Packed matrices share slabs of memory: they do not disturb each other, and the memory goes back."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbench.kernels import pack

K = 256


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_matrices_keep_their_rows_while_others_come_and_go() -> None:
    """Some 400 MiB in slabs of 64, from one tile to more than a whole slab, freed in random order. Float16 is packed as
    it is, so that rows are known without computing."""
    rng = np.random.default_rng(0)
    order = random.Random(0)
    alive: dict[int, tuple[Any, np.ndarray]] = {}
    for number in range(60):
        n = 140_000 if number in (20, 40) else int(rng.integers(1, 20_000))  # 68 MiB, and up to 10
        stored = rng.integers(0, 0x7C00, (n, K)).astype(np.uint16).view(np.float16)  # finite ones
        alive[number] = (pack("F16", stored.view(np.uint8).reshape(-1), n, K), stored[[0, -1]].astype(np.float32))
        if len(alive) > 12:
            alive.pop(order.choice(list(alive)))
    for matrix, ends in alive.values():
        np.testing.assert_array_equal(matrix.unpack_rows(np.asarray([0, matrix.n - 1], np.int32)), ends)


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
