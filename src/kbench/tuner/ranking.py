"""What the measured settings of a space say of the others: each value of each axis has an effect of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .cell_space import CellSpace, Setting

# Effects are pulled towards none as by a tenth of an observation: a value that was seen once is nearly believed, one
# that was never seen has no effect.
_RIDGE = 0.1

# An observation of a similar problem counts as this part of one of this problem.
_SIMILAR = 0.3

# Setting, and the logarithm of its time over the default's.
Observation = tuple[Setting, float]


class Ranking:
    """Expected log-seconds of settings: an additive model, fitted by least squares to what was measured.

    Block sizes, prefetching and sharing out act on different parts of a kernel, so most of what a setting gains is the
    sum of what its values gain; what is not, TPE finds.
    """

    def __init__(self, space: CellSpace, similar: Iterable[Observation] = ()) -> None:
        """``similar``: what other problems with these axes showed."""
        self._space, self._similar = space, list(similar)
        self._columns = {
            (axis, value): index
            for index, (axis, value) in enumerate(
                (axis, value) for axis, values in enumerate(space.axes.values()) for value in values
            )
        }
        # One row per allowed setting, computed once.
        self._rows = self._one_hot(space.allowed)
        self._index = {setting: index for index, setting in enumerate(space.allowed)}

    def _one_hot(self, settings: Sequence[Setting]) -> npt.NDArray[np.float64]:
        rows = np.zeros((len(settings), len(self._columns)))
        for row, setting in enumerate(settings):
            for axis, value in enumerate(setting):
                rows[row, self._columns[axis, value]] = 1
        return rows

    def expected(self, measured: Mapping[Setting, float]) -> npt.NDArray[np.float64]:
        """Log-seconds of every allowed setting, in their order, given the seconds of some."""
        known = [(setting, math.log(seconds)) for setting, seconds in measured.items() if seconds > 0]
        base = float(np.mean([log for _, log in known])) if known else 0.0
        start = next((log for setting, log in known if setting == self._space.start), base)
        observed = [*known, *((setting, start + log) for setting, log in self._similar if setting in self._index)]
        if not observed:
            return np.zeros(len(self._space.allowed))
        weights = np.array([1.0] * len(known) + [_SIMILAR] * (len(observed) - len(known)))
        x = self._one_hot([setting for setting, _ in observed])
        y = np.array([log for _, log in observed])
        centre = float(np.average(y, weights=weights))
        left = (x * weights[:, None]).T @ x + _RIDGE * np.eye(x.shape[1])
        effects = np.linalg.solve(left, (x * weights[:, None]).T @ (y - centre))
        return np.asarray(centre + self._rows @ effects)

    def best_first(self, measured: Mapping[Setting, float]) -> list[Setting]:
        """Allowed settings by expected seconds; equals stay in the order of the space."""
        order = np.argsort(self.expected(measured), kind="stable")
        return [self._space.allowed[index] for index in order]
