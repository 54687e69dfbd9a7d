"""Attention on 64 threads: all of them have work at a long context, and one thread gives the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("kbench.kernels.cpu._native")

ISA = [name for name, missing in native.isas() if not missing][-1]
CONTEXT, TOKEN = 8192, np.zeros(1, np.int32)
Record = Callable[[Any, list[int], np.ndarray], None]


def grouped(program: Any, at: list[int], cache: np.ndarray) -> None:
    program.attention(ISA, at[0], at[1], at[1], at[2], 4, 1, 64, cache, cache.copy(), 0.125)


def latent(program: Any, at: list[int], cache: np.ndarray) -> None:
    program.mla_attention(ISA, at[0], at[1], at[2], 4, 48, 16, cache, 0.125)


@pytest.mark.parametrize("record", [grouped, latent])
def test_the_last_of_64_threads_has_work(record: Record) -> None:
    """Were there fewer pieces than threads, each would be one thread's on 63 as on 64, and nothing would be rounded
    otherwise: that one thread more changes the last bits shows that the pieces are cut for it."""
    rng = np.random.default_rng(11)
    cache = rng.standard_normal((1, CONTEXT, 64)).astype(np.float16)
    values = rng.standard_normal((2, 4 * 64)).astype(np.float32)
    found = {}
    for threads in (1, 63, 64):
        raw = np.zeros(3 * 1024 + 64, np.uint8)
        arena = raw[-raw.ctypes.data % 64 :][: 3 * 1024]
        arena[:2048].view(np.float32)[:] = values.reshape(-1)
        program = native.Program(native.Pool(threads), arena, 1)
        record(program, [0, 1024, 2048], cache.copy())
        program.run(TOKEN, CONTEXT - 1)
        found[threads] = arena[2048 : 2048 + 4 * 48 * 4].view(np.float32).copy()
    # Averages of 8192 values of deviation 1: about 0.01; sums of 64 parts in float32 differ in their last bits.
    np.testing.assert_allclose(found[64], found[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[63], found[1], rtol=1e-4, atol=1e-6)
    assert (found[63] != found[64]).any()
