"""Places where a series changes its level: numbers only, as ``steps`` uses them.

The series are logarithms. Nothing here knows of commits, units or what is worth talking about.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Fewer values say nothing about their correlation.
_FEWEST = 12
# With 399 permutations, one that splits as well is still within 0.005: (1 + 1) / (399 + 1).
_PERMUTATIONS = 399
# At first few: noise is told by them already.
_BATCHES = (4, 15, 76, 152, 152)
# Values of a side: a level of one value is an outlier until the next run has said the same.
_LEAST = 2
# Values that are split while looking for places: of fewer no order says anything.
_SHORTEST = 12
# Student's t with ten degrees of freedom exceeds 8 by chance in 1e-5; eleven places to split make that 1e-4.
_CLEAR_T, _CLEAR_SIDE = 8.0, 6
# The best of several splits of noise has such a t more often than not: no permutations are asked.
_DIM_T = 2.0
# Deviations beyond which a lone value is pulled in; normal noise is there once in 16000.
_LONE = 4.0
# A median absolute deviation times this is a normal distribution's deviation.
MAD = 1.4826
# More correlation than this is a random walk's, of which no short series shows a level.
_MAX_RHO = 0.9
# Below, an estimate from a hundred values says nothing, and taking it out would cost power.
_MIN_RHO = 0.15


def without_lone(logs: Floats) -> Floats:
    """``logs`` with values that neither neighbour shares pulled in to four deviations of the median around them.

    Medians of five follow a step at once; the last two values and the first two have a median of three, so that the
    second value of a new level makes it one.
    """
    n = len(logs)
    if n < 5:
        return np.array(logs)
    differences = np.diff(logs)
    reach = _LONE * MAD * float(np.median(np.abs(differences - np.median(differences)))) / math.sqrt(2)
    middle = np.empty(n)
    middle[2:-2] = np.median(np.lib.stride_tricks.sliding_window_view(logs, 5), axis=1)
    middle[:2], middle[-2:] = np.median(logs[:3]), np.median(logs[-3:])
    pulled: Floats = np.clip(logs, middle - reach, middle + reach)
    return pulled


def correlation(logs: Floats) -> float:
    """Of neighbouring values around their level, 0 to 0.9; what is too little to be known is 0.

    For noise with correlation rho, squared differences of values two and three apart are on average 1 + rho and
    1 + rho + rho² times those of neighbours. A step is in one to three differences only, and those are cut.
    """
    if len(logs) < _FEWEST:
        return 0.0
    one, two, three = (_mean_square(logs[lag:] - logs[:-lag]) for lag in (1, 2, 3))
    if one == 0:
        return 0.0
    from_two = two / one - 1
    # The root of 1 + rho + rho² = three / one.
    from_three = (-1 + math.sqrt(max(0.0, 4 * three / one - 3))) / 2
    rho = (from_two + from_three) / 2
    return min(rho, _MAX_RHO) if rho > _MIN_RHO else 0.0


def _mean_square(differences: Floats) -> float:
    """Without what a step adds: cut at three deviations."""
    edge = 3 * MAD * float(np.median(np.abs(differences)))
    return float(np.mean(np.minimum(differences * differences, edge * edge)))


def change_points(logs: Floats, rho: float, alpha: float) -> dict[int, float]:
    """Places of steps, each with the share of permutations of the values around it, from the step before to the step
    after, that split as well (its p, at most ``alpha``).

    Split first and doubt later: of a level that was left and taken again no single split says much. So places are
    found all the way down, and taken back weakest first until each holds among its neighbours.
    """
    cuts = _places(logs, 0, len(logs), rho)
    chances: dict[tuple[int, int], tuple[int, float]] = {}
    clear: dict[tuple[int, int, int], float] = {}

    def around(i: int) -> tuple[int, int]:
        return ([0, *cuts])[i], ([*cuts, len(logs)])[i + 1]

    def clearness(i: int) -> float:
        key = (*around(i), cuts[i])
        if key not in clear:
            clear[key] = _clear(logs, rho, around(i), cuts[i])
        return clear[key]

    moves = 3 * len(cuts)  # then places stay: two of them could push each other to and fro
    while cuts:
        for i in sorted(range(len(cuts)), key=clearness):
            if clearness(i) < _DIM_T:
                del cuts[i]
                break
            span = around(i)
            if span not in chances:
                chances[span] = _judged(_innovations(logs, *span, rho), alpha)
            k, p = chances[span]
            if p > alpha:
                del cuts[i]
                break
            if cuts[i] != span[0] + k and moves > 0:
                cuts[i], moves = span[0] + k, moves - 1
                break
        else:
            return {cut: chances[around(i)][1] for i, cut in enumerate(cuts)}
    return {}


def _places(logs: Floats, start: int, stop: int, rho: float) -> list[int]:
    """The best split of ``start`` to ``stop``, of both its sides, and so on, whether or not they say anything."""
    if stop - start < _SHORTEST:
        return []
    apart = _Energy(_innovations(logs, start, stop, rho))
    if not apart.width:
        return []
    cut = start + apart.best()[0]
    return [*_places(logs, start, cut, rho), cut, *_places(logs, cut, stop, rho)]


def _innovations(logs: Floats, start: int, stop: int, rho: float) -> Floats:
    """``start`` to ``stop`` with what each value has from the one before it taken out. The first has no such one:
    before it lies another level."""
    part = np.array(logs[start:stop])
    part[1:] -= rho * logs[start : stop - 1]
    part[0] *= 1 - rho
    return part


def _clear(logs: Floats, rho: float, span: tuple[int, int], cut: int) -> float:
    part = _innovations(logs, *span, rho)
    return _t(part[: cut - span[0]], part[cut - span[0] :])


def _judged(part: Floats, alpha: float) -> tuple[int, float]:
    """The best split of ``part`` and its p."""
    apart = _Energy(part)
    if not apart.width or len(part) < 2 * _LEAST + 2:
        return 0, 1.0
    k, most = apart.best()
    return k, _chance(part, apart, k, most, alpha)


class _Energy:
    """The energy distance of the first k values and the rest, for every k at once.

    In one dimension it is twice the area between the squared difference of both distribution functions, so it takes a
    running count below each value instead of all pairs.
    """

    def __init__(self, values: Floats) -> None:
        n = self.n = len(values)
        edges = np.unique(values)
        self.width = len(edges) - 1
        self._gaps = np.diff(edges).astype(np.float32)
        below = (values[:, None] <= edges[:-1]).astype(np.float32)
        self._below = below - below.mean(axis=0)
        k = np.arange(1, n, dtype=np.float32)
        self._weights = (2 * n / (k * (n - k)))[_LEAST - 1 : n - _LEAST]

    def best(self) -> tuple[int, float]:
        """The place of the best split, and its statistic."""
        (row,) = self.of(np.arange(self.n)[None])
        at = int(np.argmax(row))
        return at + _LEAST, float(row[at])

    def of(self, orders: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """The statistic of every split, [orders, splits], of the values in each of ``orders``."""
        counts = np.cumsum(self._below[orders], axis=1)[:, _LEAST - 1 : self.n - _LEAST]
        areas: npt.NDArray[np.float32] = (counts * counts) @ self._gaps * self._weights
        return areas


def _chance(part: Floats, apart: _Energy, k: int, most: float, alpha: float) -> float:
    """The share of permutations that split as well as ``most``; above ``alpha`` as soon as it cannot be below."""
    if min(k, len(part) - k) >= _CLEAR_SIDE and _t(part[:k], part[k:]) >= _CLEAR_T:
        return 1 / (_PERMUTATIONS + 1)
    rng = np.random.default_rng(len(part))
    allowed = math.floor(alpha * (_PERMUTATIONS + 1) + 1e-9) - 1
    as_well = 0
    for batch in _BATCHES:
        orders = rng.permuted(np.tile(np.arange(len(part)), (batch, 1)), axis=1)
        as_well += int(np.sum(apart.of(orders).max(axis=1) >= most * (1 - 1e-5)))
        if as_well > allowed:
            return 1.0
    return (1 + as_well) / (_PERMUTATIONS + 1)


def _t(a: Floats, b: Floats) -> float:
    """Student's t of the difference of two means, without its sign."""
    n, m = len(a), len(b)
    a, b = a - a[0], b - a[0]  # sums of squares about a place far from the values would cancel
    one, other = float(a.sum()) / n, float(b.sum()) / m
    squares = float(a @ a) - n * one * one + float(b @ b) - m * other * other
    if squares <= 1e-24 * (n + m):  # equal values but for rounding
        return math.inf if abs(one - other) > 1e-9 else 0.0
    return abs(one - other) / math.sqrt(squares / (n + m - 2) * (1 / n + 1 / m))
