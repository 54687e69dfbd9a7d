"""The placement problem as a layered graph in arrays: its arcs are columns, and a placement is a path.

A node of a layer is where the hidden state lies and which shared tensors are in use so far::

    node = device * 2^(shared uses) + one bit for each (tensor, device) in use

so that the first column that uses a shared tensor on a device pays for its bytes, and no other does. Arcs between the
same two nodes lie side by side, in groups; of them, those that are as cheap and need as little of what is scarce stay.
Stages of a type share their arcs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .column import Column

if TYPE_CHECKING:
    from .placement import PlacementProblem

Array = npt.NDArray[np.float64]
# By position and node: the least that the rest of a path can come to.
Rest = list[list[float]]

# Up to so many shared uses: each doubles the nodes.
MOST_SHARED = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Arcs ``start`` to ``stop``: from node ``source`` of a layer to node ``target`` of the next."""

    source: int
    target: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Path:
    """A path: its arcs and the nodes that they leave, by position; cost, and bytes on each scarce device."""

    arcs: tuple[int, ...]
    nodes: tuple[int, ...]
    cost: float
    needs: Array


class Arcs:
    """Arcs of ``problem`` where only the memories of ``scarce`` devices are limited.

    ``cost`` [arcs] is seconds and the price of bytes, ``needs`` [scarce, arcs] bytes, ``capacity`` [scarce] bytes.
    """

    def __init__(self, problem: PlacementProblem, scarce: Sequence[int]) -> None:
        self.chain, self.scarce = problem.chain, tuple(scarce)
        self.capacity: Array = np.array([problem.capacity[d] for d in scarce], np.float64)
        self._uses = sorted(_uses(problem))
        self._masks = 1 << len(self._uses)
        self.n_nodes = len(problem.capacity) * self._masks
        self.first = problem.first * self._masks
        price = np.array(problem.price or (0.0,) * len(problem.capacity))
        sizes = dict(problem.shared_bytes)
        extra = [self._of_uses(mask, sizes, price) for mask in range(self._masks)]
        self.groups: list[list[Group]] = []
        self._starts: list[int] = []
        costs: list[Array] = []
        needs: list[Array] = []
        columns: list[npt.NDArray[np.int64]] = []
        length = 0
        for of_type in problem.types:
            of = _Table(of_type, self._uses, price, self.scarce)
            groups = []
            for mask in range(self._masks):
                for entry, exit_, after, members in of.ways(mask, len(problem.capacity)):
                    more_cost, more_needs = extra[after & ~mask]
                    found_cost, found_needs = of.cost[members, entry] + more_cost, of.needs[:, members]
                    kept = undominated_rows(found_cost, found_needs)
                    costs.append(found_cost[kept])
                    needs.append(found_needs[:, kept] + more_needs[:, None])
                    columns.append(members[kept])
                    ends = length, length + len(kept)
                    groups.append(Group(entry * self._masks + mask, exit_ * self._masks + after, *ends))
                    self._starts.append(length)
                    length = ends[1]
            self.groups.append(groups)
        self.cost: Array = np.concatenate(costs)
        self.needs: Array = np.concatenate(needs, axis=1)
        self._columns = np.concatenate(columns)
        self._types = problem.types

    def within(self, capacity: Sequence[int]) -> Arcs:
        """The same arcs with other limits."""
        other = copy.copy(self)
        other.capacity = np.array([capacity[d] for d in self.scarce], np.float64)
        return other

    def _of_uses(self, mask: int, sizes: dict[str, int], price: Array) -> tuple[float, Array]:
        """Cost and bytes of the shared uses in ``mask``."""
        used = [use for bit, use in enumerate(self._uses) if mask >> bit & 1]
        needs = [float(sum(sizes[name] for name, where in used if where == device)) for device in self.scarce]
        return float(sum(price[where] * sizes[name] for name, where in used)), np.array(needs)

    def rest(self, values: Array) -> tuple[Rest, list[list[Group | None]]]:
        """For every node the least sum of ``values`` [arcs] from there to the end (infinite: no way), and the group
        that begins it."""
        least = np.minimum.reduceat(values, self._starts).tolist()
        by_type, index = [], 0
        for groups in self.groups:
            by_type.append([(group, least[index + n]) for n, group in enumerate(groups)])
            index += len(groups)
        rest: Rest = [[float("inf")] * self.n_nodes for _ in self.chain] + [[0.0] * self.n_nodes]
        via: list[list[Group | None]] = [[None] * self.n_nodes for _ in self.chain]
        for position in range(len(self.chain) - 1, -1, -1):
            here, after, begins = rest[position], rest[position + 1], via[position]
            for group, value in by_type[self.chain[position]]:
                whole = value + after[group.target]
                if whole < here[group.source]:
                    here[group.source], begins[group.source] = whole, group
        return rest, via

    def cheapest(self, values: Array) -> tuple[Path, Rest] | None:
        """The path with the least sum of ``values``, and what ``rest`` tells; None: there is no path."""
        rest, via = self.rest(values)
        at, arcs, nodes = self.first, [], []
        for begins in via:
            group = begins[at]
            if group is None:
                return None
            arcs.append(group.start + int(values[group.start : group.stop].argmin()))
            nodes.append(at)
            at = group.target
        return self.path(arcs, nodes), rest

    def path(self, arcs: Sequence[int], nodes: Sequence[int]) -> Path:
        chosen = np.array(arcs)
        return Path(tuple(arcs), tuple(nodes), float(self.cost[chosen].sum()), self.needs[:, chosen].sum(axis=1))

    def columns(self, path: Path) -> list[Column]:
        """The column of each stage."""
        return [self._types[kind][self._columns[arc]] for kind, arc in zip(self.chain, path.arcs, strict=True)]


class _Table:
    """Columns of one type in arrays: cost [columns, devices] by entry, bytes on scarce devices [scarce, columns]."""

    def __init__(
        self, columns: Sequence[Column], uses: Sequence[tuple[str, int]], price: Array, scarce: Sequence[int]
    ) -> None:
        n_bytes = np.array([column.n_bytes for column in columns], np.float64).reshape(len(columns), len(price))
        seconds = np.array([column.seconds for column in columns], np.float64).reshape(n_bytes.shape)
        self.cost: Array = seconds + (n_bytes @ price)[:, None]
        self.needs: Array = n_bytes.T[list(scarce)]
        self._exits = np.array([column.exit for column in columns], np.int64)
        bits = {use: 1 << bit for bit, use in enumerate(uses)}
        self._masks = np.array([sum(bits[use] for use in column.shared) for column in columns], np.int64)

    def ways(self, mask: int, n_devices: int) -> list[tuple[int, int, int, npt.NDArray[np.int64]]]:
        """Entry, exit, the mask afterwards and which columns, when ``mask`` is in use before."""
        found = []
        for after in sorted(set((self._masks | mask).tolist())):
            for exit_ in range(n_devices):
                members = np.flatnonzero((self._exits == exit_) & ((self._masks | mask) == after))
                if len(members):
                    found += [(entry, exit_, after, members) for entry in range(n_devices)]
        return found


def _uses(problem: PlacementProblem) -> set[tuple[str, int]]:
    return {use for columns in problem.types for column in columns for use in column.shared}


def few_shared(problem: PlacementProblem) -> bool:
    """Whether few enough tensors are shared for a node to say which."""
    return len(_uses(problem)) <= MOST_SHARED


# Cells of the table in which rows are compared, and of the table for all of them.
_CELLS, _TABLE = 256, 1 << 21


def undominated_rows(cost: Array, needs: Array) -> npt.NDArray[np.int64]:
    """Indices, by rising cost, of the rows that are not both as expensive and as large as another: of equal ones the
    first stays. ``cost`` [n], ``needs`` [scarce, n].

    With two scarce devices and many rows some that could go stay.
    """
    order = np.lexsort((*needs[::-1], cost))
    if len(order) < 2:
        return order
    if not len(needs):
        return order[:1]
    last = needs[-1, order]
    if len(needs) == 1:
        least = np.minimum.accumulate(last)
        return order[np.concatenate(([True], last[1:] < least[:-1]))]
    # Two: by edges among the values of the first, those that are met by what is cheaper, with the least of the second.
    first = needs[0, order]
    edges = np.unique(first)
    most = max(16, min(_CELLS, _TABLE // len(order)))
    if len(edges) > most:
        edges = edges[np.linspace(0, len(edges) - 1, most).astype(np.int64)]
    seen = np.full((len(order), len(edges)), np.inf)
    seen[np.arange(len(order)), np.searchsorted(edges, first, "left")] = last
    seen = np.minimum.accumulate(np.minimum.accumulate(seen, axis=0), axis=1)
    met = seen[np.arange(len(order) - 1), np.searchsorted(edges, first[1:], "right") - 1]
    return order[np.concatenate(([True], met > last[1:]))]
