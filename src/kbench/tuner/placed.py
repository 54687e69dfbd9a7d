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
from .streaming import Streaming


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
    streaming: Sequence[Streaming] = ()

    @property
    def threshold(self) -> int:
        """Longer prompts are prefilled layer by layer; 0: none is."""
        found = self.layout.layerwise
        return found.threshold if found is not None and self.layout.swapped_to(self.solution) else 0

    @property
    def workload_seconds(self) -> float:
        """What the workload takes, in what is minimised."""
        return sum(times * self.prices[phase].seconds for phase, times in self.layout.times.items())
