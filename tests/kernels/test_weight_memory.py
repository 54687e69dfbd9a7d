"""Packed matrices share slabs of memory: they do not disturb each other, and the memory goes back."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kbench.kernels import pack

K = 256


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


# In a process of its own: what other tests leave behind comes and goes while this one counts.
_COUNT = """
import os
import numpy as np
from kbench.kernels import pack

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

stored = np.zeros(1 << 20, np.uint8)
pack("F16", stored, 2048, 256)  # whatever is loaded when first used
before = resident_bytes()
matrices = [pack("F16", stored, 2048, 256) for _ in range(200)]
packed = resident_bytes() - before
del matrices
print(packed, resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is in use")
def test_the_memory_of_matrices_goes_back_to_the_system() -> None:
    found = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True).stdout
    packed, left = (int(text) / 2**20 for text in found.split())
    # 200 matrices of 1 MiB, each page written, and at most a huge page that the last of them does not fill.
    assert 199 <= packed <= 204  # the kernel counts resident pages in batches
    assert left <= 2
