"""What limits a kernel on chips of NVIDIA's, by compute capability."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

_Choice = TypeVar("_Choice")

# Of a multiprocessor, whatever the chip: four equal parts, each with its own registers; a warp lives in one of them and
# takes registers 256 at a time (CUDA C++ Programming Guide; occupancy calculator).
_PARTS = 4
_REGISTERS_OF_PART = 16384
_REGISTER_STEP = 256
_WARP_THREADS = 32
# Shared memory is given out in such pieces, and each block takes 1 KiB for itself.
_SHARED_STEP = 128
_SHARED_OF_SYSTEM = 1 << 10


@dataclass(frozen=True, slots=True)
class Chip:
    """Limits of chips of one compute capability (CUDA C++ Programming Guide, technical specifications).

    Attributes:
        capability: 80 stands for 8.0.
        warps: resident on a multiprocessor.
        blocks: resident on a multiprocessor.
        shared_bytes: of a multiprocessor; a block may have all of it but what the system takes.
    """

    capability: int
    warps: int
    blocks: int
    shared_bytes: int

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"

    @property
    def block_shared_bytes(self) -> int:
        """What a block may have."""
        return self.shared_bytes - _SHARED_OF_SYSTEM

    def occupancy(self, registers: int, shared_bytes: int, warps: int) -> float:
        """Share of the resident warps that blocks of ``warps`` warps, with ``registers`` a thread and ``shared_bytes``
        a block, fill at once."""
        of_warp = -(-registers * _WARP_THREADS // _REGISTER_STEP) * _REGISTER_STEP
        by_registers = _PARTS * (_REGISTERS_OF_PART // of_warp) // warps
        of_block = -(-(shared_bytes + _SHARED_OF_SYSTEM) // _SHARED_STEP) * _SHARED_STEP
        blocks = min(self.blocks, self.warps // warps, by_registers, self.shared_bytes // of_block)
        return blocks * warps / self.warps


_CHIPS = (
    Chip(80, 64, 32, 164 << 10),
    Chip(86, 48, 16, 100 << 10),
    Chip(89, 48, 24, 100 << 10),
    Chip(90, 64, 32, 228 << 10),
    Chip(100, 64, 32, 228 << 10),
    Chip(120, 48, 24, 100 << 10),
)
CHIPS = {chip.capability: chip for chip in _CHIPS}


def nearest(major: int, minor: int) -> int:
    """Which of ``CHIPS`` stands for a chip of capability ``major.minor``: the highest that is not above it, whose
    instructions it has; the lowest where all are."""
    return max((capability for capability in CHIPS if capability <= 10 * major + minor), default=min(CHIPS))


@functools.lru_cache(maxsize=16)
def chip_at(place: torch.device) -> int:
    """Which of ``CHIPS`` is there; 0 where Triton interprets, and any configuration will do."""
    if place.type != "cuda":
        return 0
    import torch

    return nearest(*torch.cuda.get_device_capability(place))


def by_choice(chosen: Callable[[int], Iterable[_Choice]]) -> dict[_Choice, tuple[int, ...]]:
    """What is chosen on any of ``CHIPS``, and on which."""
    found: dict[_Choice, tuple[int, ...]] = {}
    for capability in CHIPS:
        for choice in chosen(capability):
            found[choice] = (*found.get(choice, ()), capability)
    return found
