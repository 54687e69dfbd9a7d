"""A canary: a fixed piece of work whose time says how fast the machine is right now, whatever kbench's code is.

Two kinds, because they go wrong by themselves: arithmetic (SHA-256 of a block that fits the L2 cache) follows the
clock, a copy larger than common last-level caches follows the memory. Neither is kbench's own code: a change of ours
cannot move it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .statistics import median

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_HASHED_BYTES = 256 << 10
_COPIED_BYTES = 64 << 20
_N = 5

# Between two readings around a block: more than this, and the block saw two machines.
MAX_CHANGE = 0.10


@dataclass(frozen=True, slots=True)
class Canary:
    """Seconds of each piece of work."""

    arithmetic: float
    memory: float

    def changed(self, before: Canary, most: float = MAX_CHANGE) -> tuple[str, ...]:
        """What is by more than ``most`` slower or faster than ``before``, in words."""
        found = []
        for what, now, then in (
            ("arithmetic", self.arithmetic, before.arithmetic),
            ("memory", self.memory, before.memory),
        ):
            if now > then * (1 + most):
                found.append(f"{what} became {now / then - 1:.0%} slower")
            elif then > now * (1 + most):
                found.append(f"{what} became {then / now - 1:.0%} faster")
        return tuple(found)

    def as_dict(self) -> dict[str, float]:
        return {"arithmetic": self.arithmetic, "memory": self.memory}

    @classmethod
    def from_dict(cls, said: Any) -> Canary | None:
        """What ``as_dict`` gave; None for anything else."""
        if not isinstance(said, Mapping):
            return None
        arithmetic, memory = said.get("arithmetic"), said.get("memory")
        if not all(isinstance(x, float) and 0 < x < 1e6 for x in (arithmetic, memory)):
            return None
        return cls(float(arithmetic), float(memory))  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def _buffers() -> tuple[bytes, npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    import numpy as np

    source = np.ones(_COPIED_BYTES, np.uint8)
    return bytes(_HASHED_BYTES), source, source.copy()


def canary() -> Canary:
    """A reading: medians of a few tries each, some 50 ms."""
    hashed, source, target = _buffers()
    arithmetic, memory = [], []
    for _ in range(_N):
        begin = time.perf_counter()
        hashlib.sha256(hashed).digest()
        middle = time.perf_counter()
        target[:] = source
        arithmetic.append(middle - begin)
        memory.append(time.perf_counter() - middle)
    return Canary(median(arithmetic), median(memory))
