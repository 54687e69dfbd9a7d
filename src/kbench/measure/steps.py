"""Steps in a history: where a series of values, one a commit, went to another level and stayed there.

Ratios count, so logarithms are looked at. How (E-divisive, Matteson and James 2014, made fit for short noisy series):

1. A value that its neighbours do not share is pulled in to where noise reaches (a Hampel filter): one bad run is no
   step.
2. Neighbouring runs resemble each other (a warm machine, a busy neighbour), and correlated noise wanders: tests for
   independent values call most such wandering a step. The correlation is estimated from differences, which steps hardly
   touch (Chakar et al. 2017), and taken out: ``y[t] = x[t] - rho x[t-1]``.
3. The split that sets both sides furthest apart by the energy distance is tried; both sides are split in turn, as far
   down as there are values. Splits are then taken back, the weakest first, until each holds between its neighbours.
4. It holds when hardly any permutation of the values around it splits as well. The random numbers are seeded: the same
   history always has the same steps. A step that a t statistic of 8 shows needs no permutations.
5. Steps that are smaller than is worth talking about are taken back, the smallest first, and their neighbours join.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

# numpy and what needs it are imported where they are used: who only asks for the host's fingerprint does not wait.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Two halves of six values are the least whose order alone (2 in 924) says more than ALPHA.
FEWEST_POINTS = 12
# What came before is another time's machine; a permutation costs the square of this.
MOST_POINTS = 400
MIN_MAGNITUDE = 0.03
ALPHA = 0.005


@dataclass(frozen=True, slots=True)
class Level:
    """Values ``start`` to before ``stop`` are about ``value`` (their median)."""

    start: int
    stop: int
    value: float


@dataclass(frozen=True, slots=True)
class Step:
    """From value ``at`` on the level is ``after``; ``p`` is the share of permutations that split as well."""

    at: int
    before: float
    after: float
    p: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class Steps:
    """A series as levels with steps between them.

    ``rho`` is the correlation of neighbouring values that was taken out, ``noise`` the deviation of one value around
    its level as a share.
    """

    levels: tuple[Level, ...]
    steps: tuple[Step, ...]
    rho: float
    noise: float


def find_steps(values: Sequence[float], *, min_magnitude: float = MIN_MAGNITUDE, alpha: float = ALPHA) -> Steps:
    """The levels of ``values`` (positive, oldest first; any unit), and the steps between them.

    Fewer than ``FEWEST_POINTS`` are one level. Of more than ``MOST_POINTS`` the newest are looked at; indices are
    still those of ``values``.

    Raises:
        ValueError: no values, or one that is not a positive finite number.
    """
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError("accepted: positive finite numbers, at least one")
    import numpy as np

    from .change_points import MAD, change_points, correlation, without_lone

    offset = max(0, len(values) - MOST_POINTS)
    logs = np.log(np.asarray(values[offset:], np.float64))
    clean = without_lone(logs)
    rho = correlation(clean)
    found = change_points(clean, rho, alpha) if len(clean) >= FEWEST_POINTS else {}
    cuts = _worth(clean, sorted(found), math.log1p(min_magnitude))
    bounds = [0, *cuts, len(clean)]
    centres = [float(np.median(clean[a:b])) for a, b in pairwise(bounds)]
    around = np.concatenate([logs[a:b] - c for (a, b), c in zip(pairwise(bounds), centres, strict=True)])
    levels = [Level(offset + a, offset + b, math.exp(c)) for (a, b), c in zip(pairwise(bounds), centres, strict=True)]
    steps = [
        Step(after.start, before.value, after.value, found[after.start - offset]) for before, after in pairwise(levels)
    ]
    return Steps(tuple(levels), tuple(steps), rho, math.expm1(MAD * float(np.median(np.abs(around)))))


def _worth(logs: npt.NDArray[np.float64], cuts: list[int], edge: float) -> list[int]:
    """``cuts`` without those whose levels are within ``edge`` of each other, the smallest taken back first."""
    import numpy as np

    while cuts:
        centres = np.array([np.median(logs[a:b]) for a, b in pairwise([0, *cuts, len(logs)])])
        jumps = np.abs(np.diff(centres))
        smallest = int(np.argmin(jumps))
        if jumps[smallest] >= edge:
            break
        del cuts[smallest]
    return cuts
