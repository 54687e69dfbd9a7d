"""Where the tokens of a step belong, in a device's memory: what kernels read instead of being told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..implementation import StepState

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Places:
    """``sequences`` and ``positions``, whole numbers ``[tokens]``; ``known``: what was written to them last."""

    sequences: torch.Tensor
    positions: torch.Tensor
    known: npt.NDArray[np.int32]


def places(state: StepState, place: str) -> Places:
    """Those of ``state`` on torch device ``place``, made or brought up to date; those of a captured step where they
    are, which the host does not look at."""
    import torch

    step = state.on_device
    if step is not None:
        if "places" not in step.constants:
            first = torch.zeros(1, dtype=torch.int32, device=place)
            step.constants["places"] = Places(first, step.positions, np.zeros((2, 0), np.int32))
        captured: Places = step.constants["places"]
        return captured
    parts = state.parts()
    sequences = np.repeat([s for s, _, _ in parts], [rows.stop - rows.start for _, _, rows in parts])
    now = np.stack([sequences, state.positions]).astype(np.int32)
    key = f"places {place} {now.shape[1]}"
    found: Places | None = state.kept.get(key)
    if found is None:
        made = torch.from_numpy(now).to(place, copy=True)
        found = state.kept[key] = Places(made[0], made[1], now)
    if not np.array_equal(found.known, now):
        for target, row in zip((found.sequences, found.positions), now, strict=True):
            target.copy_(torch.from_numpy(row))
        found.known = now
    return found
