"""Cold caches: rotate over copies of the weights that do not fit the last-level cache together.

A decode step reads gigabytes of weights once, so no weight is in cache when its turn comes. A benchmark that reads
the same matrix again and again measures the cache instead. Twice the cache, because an LRU-like policy keeps
part of a working set that only just exceeds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

# The copies together must exceed this many last-level caches.
COLD_FACTOR = 2


def rotation_count(n_bytes_per_copy: int, llc_bytes: int, cap: int | None = None) -> int:
    """Copies whose total exceeds twice the last-level cache; 1 when one does, or when there is nothing to read.

    ``cap`` bounds the answer, for memory's sake; ask ``is_cold`` whether what is left is cold.
    """
    if n_bytes_per_copy <= 0:
        return 1
    n = COLD_FACTOR * max(llc_bytes, 0) // n_bytes_per_copy + 1
    return max(1, min(n, cap)) if cap is not None else n


def is_cold(n_copies: int, n_bytes_per_copy: int, llc_bytes: int) -> bool:
    """Whether a full turn reads more than twice the last-level cache."""
    return n_copies * n_bytes_per_copy > COLD_FACTOR * llc_bytes


class Rotation(Generic[T]):
    """Hands out copies in turn, round and round."""

    def __init__(self, copies: Sequence[T]) -> None:
        if not copies:
            raise ValueError("a rotation needs at least one copy")
        self._copies = tuple(copies)
        self._next = 0

    def __len__(self) -> int:
        return len(self._copies)

    def next(self) -> T:
        copy = self._copies[self._next]
        self._next = (self._next + 1) % len(self._copies)
        return copy
