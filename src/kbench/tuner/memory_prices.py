"""Prices of scarce memory that bound a placement from below (Lagrange multipliers), and good placements met on the way.

Without its limits a placement is a cheapest path, found at once. With a price on every scarce byte, whatever it is,

    L(price) = min over paths (cost + price * bytes) - price * capacity

is no more than any path that fits costs. L is concave, and what the cheapest path needs beyond the capacity is its
slope: the best price is where two tangents meet, one of a path that fits and one of a path that does not (Handler and
Zang 1980, Networks 10). For a second device that search is the value of an outer one.

How much the best price falls short of the optimum depends on how fine the choices are: with sixty layers a thousandth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from .arcs import Arcs, Array, Path, Rest

# Tangents meet exactly after some ten steps; then only rounding is left.
_TOLERANCE = 1e-13
_MAX_STEPS = 40
# Prices grow by this until one is too high.
_GROWTH = 8.0
# Paths of which pieces are put together.
_KEPT = 24


@dataclass(slots=True)
class Bound:
    """The largest ``value`` found, at ``prices`` [scarce], with the ``rest`` of the path from each node at them.

    ``best`` is the cheapest path met that fits; ``impossible``: none does.
    """

    value: float = -math.inf
    prices: Array = field(default_factory=lambda: np.zeros(0))
    rest: Rest = field(default_factory=list)
    best: Path | None = None
    impossible: bool = False


def bound_of(arcs: Arcs) -> Bound:
    """The best prices of ``arcs``' scarce memories."""
    return _Climb(arcs).run()


class _Impossible(Exception):
    """A bound above what any path costs: none fits."""


@dataclass(frozen=True, slots=True)
class _Tangent:
    price: float
    value: float
    slopes: Array


class _Climb:
    def __init__(self, arcs: Arcs) -> None:
        self._arcs, self._found = arcs, Bound()
        self._prices = np.zeros(len(arcs.scarce))
        most = [max(float(arcs.cost[g.start : g.stop].max()) for g in groups) for groups in arcs.groups]
        self._most = 1 + 1.01 * math.fsum(most[kind] for kind in arcs.chain)
        self._paths: list[Path] = []

    def run(self) -> Bound:
        try:
            self._climb(len(self._prices) - 1)
        except _Impossible:
            return Bound(impossible=True)
        self._put_together()
        return self._found

    def _climb(self, axis: int) -> _Tangent:
        """The tangent at the best prices of the devices up to ``axis``, those of the others as they are."""
        if axis < 0:
            return self._evaluate()
        low = self._at(axis, 0.0)
        if low.slopes[axis] <= 0:
            return low
        # What all of the cost would be worth, spread over the bytes that are too many: somewhere near.
        step = abs(low.value) / float(low.slopes[axis]) / _GROWTH or 1.0
        high = self._at(axis, step)
        while high.slopes[axis] > 0:
            low, step = high, step * _GROWTH
            high = self._at(axis, step)
        for _ in range(_MAX_STEPS):
            rise = float(low.slopes[axis] - high.slopes[axis])
            price = low.price + (high.value - low.value + float(high.slopes[axis]) * (low.price - high.price)) / rise
            if not low.price < price < high.price:
                break
            expected = low.value + float(low.slopes[axis]) * (price - low.price)
            found = self._at(axis, price)
            if found.slopes[axis] > 0:
                low = found
            else:
                high = found
            if expected - found.value <= _TOLERANCE * abs(expected):
                break
        share = float(high.slopes[axis] / (high.slopes[axis] - low.slopes[axis]))
        # Where the two meet, the mean of them that needs just what there is.
        return _Tangent(high.price, max(low.value, high.value), share * low.slopes + (1 - share) * high.slopes)

    def _at(self, axis: int, price: float) -> _Tangent:
        self._prices[axis] = price
        inner = self._climb(axis - 1)
        return _Tangent(price, inner.value, inner.slopes)

    def _evaluate(self) -> _Tangent:
        arcs = self._arcs
        found = arcs.cheapest(arcs.cost + self._prices @ arcs.needs)
        if found is None:
            raise _Impossible
        path, rest = found
        value = rest[0][arcs.first] - float(self._prices @ arcs.capacity)
        if value > self._most:
            raise _Impossible
        if value > self._found.value:
            self._found.value, self._found.prices, self._found.rest = value, self._prices.copy(), rest
        self._offer(path)
        if all(path.arcs != other.arcs for other in self._paths):
            self._paths = [*self._paths, path][-_KEPT:]
        return _Tangent(0.0, value, path.needs - arcs.capacity)

    def _offer(self, path: Path) -> None:
        best = self._found.best
        if (path.needs <= self._arcs.capacity).all() and (best is None or path.cost < best.cost):
            self._found.best = path

    def _put_together(self) -> None:
        """Paths that begin like one and end like another of those that were met, at a node that both pass."""
        arcs = self._arcs
        if not self._paths:
            return
        chosen = np.array([path.arcs for path in self._paths])
        nodes = np.array([path.nodes for path in self._paths])
        # Of each path its first stages, all but none of them to all but the last.
        cost = np.cumsum(arcs.cost[chosen], axis=1)[:, :-1]
        needs = np.cumsum(arcs.needs[:, chosen], axis=2)[:, :, :-1]
        whole = np.array([path.cost for path in self._paths])
        all_needs = np.array([path.needs for path in self._paths]).T
        for index in range(len(self._paths)):
            costs = cost[index] + whole[:, None] - cost
            fits = nodes[:, 1:] == nodes[index, 1:]
            for axis, room in enumerate(arcs.capacity):
                fits &= needs[axis, index] + all_needs[axis][:, None] - needs[axis] <= room
            costs[~fits] = np.inf
            other, at = np.unravel_index(int(costs.argmin()), costs.shape) if costs.size else (0, 0)
            if costs.size and costs[other, at] < np.inf:
                one, two = self._paths[index], self._paths[other]
                cut = int(at) + 1
                self._offer(arcs.path((*one.arcs[:cut], *two.arcs[cut:]), (*one.nodes[:cut], *two.nodes[cut:])))
