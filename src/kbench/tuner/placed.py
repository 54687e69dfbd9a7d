"""What was placed, before anything is written or run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbench.core import Device, Phase

from .budget import Budget
from .layout import Layout
from .placement import PlacementProblem, Solution
from .price import PhasePrice
from .profile import GpuProfile


@dataclass(frozen=True, slots=True)
class Placed:
    """The outcome of planning, before anything is written or run."""

    layout: Layout
    problem: PlacementProblem
    solution: Solution
    greedy_seconds: float | None
    prices: Mapping[Phase, PhasePrice]
    available: Sequence[Budget]
    profiles: Mapping[Device, GpuProfile]
