"""Damaged files: whatever is done to the bytes of a good one, the reader refuses it in its own words or reads it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from kbench.core import UserError
from kbench.model import build_tree, describe_gguf, open_gguf

# The header of the tiny file is some 9 KB; what follows are weights, which may be anything.
HEADER_BYTES = 9000
BAD_NUMBERS = (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def _use(path: Path) -> None:
    """All that a planner does with a file before it reads weights."""
    with contextlib.suppress(UserError):  # CorruptFile and Unsupported are UserErrors
        build_tree(describe_gguf(open_gguf(path)))


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes(seed: int, tiny_gguf: Path, tmp_path: Path) -> None:
    good = np.frombuffer(tiny_gguf.read_bytes(), np.uint8)
    rng = np.random.default_rng(seed)
    path = tmp_path / "bad.gguf"
    for _ in range(60):
        bad = good.copy()
        where = rng.integers(0, HEADER_BYTES, int(rng.integers(1, 6)))
        bad[where] = rng.integers(0, 256, where.size)
        path.write_bytes(bad.tobytes())
        _use(path)


@pytest.mark.parametrize("seed", range(2))
def test_numbers_replaced_by_extreme_ones(seed: int, tiny_gguf: Path, tmp_path: Path) -> None:
    good = tiny_gguf.read_bytes()
    rng = np.random.default_rng(seed)
    path = tmp_path / "bad.gguf"
    for _ in range(60):
        at, width = int(rng.integers(0, HEADER_BYTES)), int(rng.choice([4, 8]))
        number = BAD_NUMBERS[int(rng.integers(len(BAD_NUMBERS)))] % 2 ** (8 * width)
        path.write_bytes(good[:at] + number.to_bytes(width, "little") + good[at + width :])
        _use(path)


def test_truncated_anywhere(tiny_gguf: Path, tmp_path: Path) -> None:
    good = tiny_gguf.read_bytes()
    path = tmp_path / "short.gguf"
    for size in (*range(0, 200, 7), *range(200, HEADER_BYTES, 499), len(good) - 4096):
        path.write_bytes(good[:size])
        with pytest.raises(UserError):
            open_gguf(path)


def test_the_good_file_is_good(tiny_gguf: Path) -> None:
    assert build_tree(describe_gguf(open_gguf(tiny_gguf))).weight_bytes > 0
