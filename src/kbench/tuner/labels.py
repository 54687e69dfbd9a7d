"""The optimal placement by labels: every way to begin it that may still become the best one.

A label is a way to the node of a layer: its cost, and the bytes it needs of each scarce device. Layer by layer, labels
are continued by the arcs, and dropped where they cannot come to anything better:

    what they cost, with the cheapest rest at the best prices of memory (``memory_prices``), is no less than a
    placement that is known
    what they need, with the smallest rest, does not fit
    another label of the node costs no more and needs no more of anything

Layers that cost the same make labels that are alike, of which one stays: sixty of them are no more work than six. And
where all layers differ, by how their experts are visited, the bound leaves a few hundred labels a node of the billions
(Dumitrescu and Boland 2003, Networks 42).

Where more are left than are kept, those with the least bounds go on, and the least bound of the others says how far
from the optimum the answer can be; a wider pass follows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .arcs import Arcs, Array, Path, Rest, undominated_rows
from .memory_prices import Bound, bound_of

# Labels of a node that are kept, pass by pass: the first gives a good placement, by which the next drop almost all.
_WIDTHS = (64, 512, 4096, 32768)

# So many times as many are compared with each other before.
_COMPARED = 32

# With two scarce devices hardly any label is worse than another, and only a good bound drops them. It is good where
# layers are many and small; a few large ones leave more than this open, and labels would not come to an end.
_HOPELESS = 0.02

# Sums of sixty numbers, in two orders.
_ROUNDING = 1e-12

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Found:
    """The best ``path`` that was found to fit, and what none costs less than: infinite where none fits."""

    path: Path | None
    bound: float

    @property
    def gap(self) -> float:
        """What remains unproven, relative; infinite where it is open whether anything fits."""
        if self.path is None:
            return 0.0 if self.bound == float("inf") else float("inf")
        left = self.path.cost - self.bound
        return left / self.path.cost if left > 2 * _ROUNDING * self.path.cost else 0.0


@dataclass(frozen=True, slots=True)
class _Labels:
    """Of one node: ``cost`` [n], ``needs`` [scarce, n], ``priced`` [n] (cost with the price of the bytes), and where
    each came from: the node before, the label there, the arc."""

    cost: Array
    needs: Array
    priced: Array
    node: Indices
    parent: Indices
    arc: Indices


def shortest(arcs: Arcs, time_limit_seconds: float, gap: float) -> Found:
    """The cheapest path of ``arcs`` that fits: proven to be within ``gap`` of the best, or the best that was met by
    labels that do not come to an end, or not in time."""
    until = time.monotonic() + time_limit_seconds
    bound = bound_of(arcs)
    if bound.impossible:
        return Found(None, float("inf"))
    found = Found(bound.best, bound.value)
    if not arcs.scarce:
        return found
    search = _Search(arcs, bound)
    for width in _WIDTHS:
        found = search.run(width, found.path, gap)
        hopeless = len(arcs.scarce) > 1 and found.gap > _HOPELESS
        if found.gap <= gap or hopeless or time.monotonic() > until:
            break
    return found


class _Search:
    def __init__(self, arcs: Arcs, bound: Bound) -> None:
        self._arcs, self._bound = arcs, bound
        self._priced: Array = arcs.cost + bound.prices @ arcs.needs
        self._worth = float(bound.prices @ arcs.capacity)
        self._smallest: list[Rest] = [arcs.rest(needs)[0] for needs in arcs.needs]

    def run(self, width: int, known: Path | None, gap: float) -> Found:
        """One pass with up to ``width`` labels a node."""
        arcs = self._arcs
        # What is no better than this is not looked for.
        target = float("inf") if known is None else known.cost * (1 - gap) - _ROUNDING * known.cost
        zero, none = np.zeros(1), np.zeros(1, np.int64)
        layer = {arcs.first: _Labels(zero, np.zeros((len(arcs.scarce), 1)), zero, none, none, none)}
        layers = [layer]
        left_out = float("inf")
        for position in range(len(arcs.chain)):
            following: dict[int, list[_Labels]] = {}
            for node, labels in self._continued(position, layer, target):
                following.setdefault(node, []).append(labels)
            layer = {}
            for node, parts in following.items():
                rest = self._bound.rest[position + 1][node] - self._worth
                whole, first_out = _cut(_joined(parts), _COMPARED * width)
                kept, then_out = _cut(_taken(whole, undominated_rows(whole.cost, whole.needs)), width)
                left_out = min(left_out, first_out + rest, then_out + rest)
                layer[node] = kept
            layers.append(layer)
        best = known
        for node, labels in layer.items():
            index = int(labels.cost.argmin())
            if best is None or labels.cost[index] < best.cost:
                best = self._path(layers, node, index)
        proven = max(self._bound.value, min(target, left_out, best.cost if best is not None else float("inf")))
        return Found(best, proven)

    def _continued(self, position: int, layer: dict[int, _Labels], target: float) -> Iterator[tuple[int, _Labels]]:
        """By every group of arcs, to which node, what may still come to less than ``target``."""
        arcs = self._arcs
        for group in arcs.groups[arcs.chain[position]]:
            labels = layer.get(group.source)
            rest = self._bound.rest[position + 1][group.target] - self._worth
            if labels is None or rest == float("inf"):
                continue
            priced = self._priced[group.start : group.stop]
            useful = group.start + np.flatnonzero(float(labels.priced.min()) + priced + rest < target)
            kept = labels.priced[:, None] + self._priced[useful] + rest < target
            for axis, smallest in enumerate(self._smallest):
                room = arcs.capacity[axis] - smallest[position + 1][group.target]
                kept &= labels.needs[axis][:, None] + arcs.needs[axis, useful] <= room
            parent, column = np.nonzero(kept)
            if not len(parent):
                continue
            arc = useful[column]
            source = np.full(len(parent), group.source)
            yield (
                group.target,
                _Labels(
                    labels.cost[parent] + arcs.cost[arc],
                    labels.needs[:, parent] + arcs.needs[:, arc],
                    labels.priced[parent] + self._priced[arc],
                    source,
                    parent,
                    arc,
                ),
            )

    def _path(self, layers: list[dict[int, _Labels]], node: int, index: int) -> Path:
        chosen, nodes = [], []
        for layer in reversed(layers[1:]):
            labels = layer[node]
            chosen.append(int(labels.arc[index]))
            node, index = int(labels.node[index]), int(labels.parent[index])
            nodes.append(node)
        return self._arcs.path(chosen[::-1], nodes[::-1])


def _joined(parts: list[_Labels]) -> _Labels:
    fields = ("cost", "needs", "priced", "node", "parent", "arc")
    return _Labels(*(np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in fields))


def _cut(labels: _Labels, width: int) -> tuple[_Labels, float]:
    """Those ``width`` of ``labels`` with the least bounds, and what the others cost at least (with their bytes)."""
    if len(labels.cost) <= width:
        return labels, float("inf")
    order = np.argpartition(labels.priced, width)
    return _taken(labels, np.sort(order[:width])), float(labels.priced[order[width]])


def _taken(labels: _Labels, chosen: Indices) -> _Labels:
    return _Labels(
        labels.cost[chosen], labels.needs[:, chosen], labels.priced[chosen],
        labels.node[chosen], labels.parent[chosen], labels.arc[chosen],
    )  # fmt: skip
