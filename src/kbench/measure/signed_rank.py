"""The Hodges-Lehmann estimate of paired differences, and the Wilcoxon signed-rank test that it comes from.

``n`` differences have ``n (n + 1) / 2`` *Walsh averages*, ``(d_i + d_j) / 2`` with ``i <= j``. Their median is the
Hodges-Lehmann estimate: nearly as precise as the mean where noise is normal, and unmoved by a pair that was disturbed.
The signed-rank statistic of "the centre is c" is the number of averages above ``c``; where differences are symmetric
about their centre it has one known distribution whatever the noise, so that ranks of the sorted averages enclose the
centre with an exact probability::

    A_1 ... A_k-1   A_k ............... A_m+1-k   A_m+2-k ... A_m         P(outside) = 2 P(W < k) <= 1 - confidence
                    low                   high
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from .statistics import Interval

# numpy is imported where it is used: who only asks for the host's fingerprint does not wait for it.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

# Of pairs: the exact distribution takes n^3 additions, and no verdict needs more.
MAX_N = 1000


def walsh_averages(values: Sequence[float]) -> Floats:
    """Every ``(v_i + v_j) / 2`` with ``i <= j``, in order. ValueError when there are no values or over ``MAX_N``."""
    import numpy as np

    if not 1 <= len(values) <= MAX_N:
        raise ValueError(f"{len(values)} values, accepted: 1 to {MAX_N}")
    array = np.asarray(values, np.float64)
    rows, columns = np.triu_indices(len(array))
    return np.sort((array[rows] + array[columns]) / 2)


def hodges_lehmann(values: Sequence[float]) -> float:
    """The median of the Walsh averages."""
    import numpy as np

    return float(np.median(walsh_averages(values)))


@lru_cache(maxsize=256)
def _cumulative(n: int) -> Floats:
    """``P(W <= w)`` for ``w`` = 0 ... n (n + 1) / 2: each rank is in the sum or not, with probability 1/2."""
    import numpy as np

    chance = np.zeros(n * (n + 1) // 2 + 1)
    chance[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(chance)
        shifted[rank:] = chance[:-rank]
        chance = (chance + shifted) / 2
    total: Floats = np.minimum(np.cumsum(chance), 1.0)
    return total


def interval_of_averages(ordered: Floats, n: int, confidence: float) -> Interval:
    """``hodges_lehmann_interval`` of the Walsh averages of ``n`` values."""
    import numpy as np

    below = _cumulative(n)
    # The largest k with 2 P(W <= k - 1) <= 1 - confidence; the sum of many chances is off by some 1e-15.
    k = int(np.searchsorted(2 * below, 1 - confidence + 1e-12, side="right"))
    k = min(k, (len(ordered) - 1) // 2)
    outside = 2 * float(below[k - 1]) if k else 0.0
    if not k:  # even the widest interval is too narrow: it is given with the coverage that it has
        return Interval(float(ordered[0]), float(ordered[-1]), max(0.0, 1 - 2 * 0.5**n))
    return Interval(float(ordered[k - 1]), float(ordered[-k]), 1 - outside)


def hodges_lehmann_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The narrowest interval of Walsh averages that covers the centre with at least ``confidence``.

    With too few values (under six for 95 %) none does, and the whole range is given with the coverage that it has.
    """
    return interval_of_averages(walsh_averages(values), len(values), confidence)


def chance_beyond(ordered: Floats, n: int, centre: float) -> tuple[float, float]:
    """One-sided p-values from the Walsh averages of ``n`` values: of so many above ``centre``, of so many below it.

    A small first one speaks for a centre above ``centre``. Averages equal to it count against both.
    """
    import numpy as np

    below = _cumulative(n)
    not_above = int(np.searchsorted(ordered, centre, side="right"))  # at most so many are not above
    not_below = len(ordered) - int(np.searchsorted(ordered, centre, side="left"))
    return float(below[not_above]), float(below[not_below])


def signed_rank_p(values: Sequence[float], centre: float = 0.0) -> tuple[float, float]:
    """``chance_beyond`` of ``values``: exact one-sided p-values of the signed-rank test, above and below ``centre``."""
    return chance_beyond(walsh_averages(values), len(values), centre)
