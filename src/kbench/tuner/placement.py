"""Exact placement: one column for every stage, least time, under every device's memory budget.

Layers that cost the same are interchangeable, and a solver could spend its life telling their permutations apart.
Therefore columns are counted by stage type, and only the path of the hidden state is kept layer by layer:

    p[s, i, o]  in {0, 1}   the hidden state enters stage s on device i and leaves it on device o
    n[t, i, c]  integer     how many stages of type t run column c, entered from device i

    minimise    sum of seconds[t,i,c] * n[t,i,c]  +  price of the bytes
    such that   p is a path from the first stage to the last
                for every t, i, o:  sum of n over the columns that leave on o  =  sum of p over the stages of type t
                the bytes of the counted columns fit each device's capacity
                a shared tensor's bytes count once on each device that uses it

Any solution deals its columns out to the stages of the path, so the optimum is that of placing every unit of every
layer on its own. Memory rows are added only when the optimum without them breaks them: a relaxation whose optimum is
feasible has found the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from .column import Column, undominated

# Rows of memory are written in MiB: HiGHS keeps rows to an absolute 1e-6 of their unit, which then is one byte.
_MIB = float(1 << 20)

# The objective is scaled so that the whole workload is about this much: HiGHS stops at an absolute gap of 1e-6, which
# then is a billionth of the time.
_SCALE = 1000.0


Types = tuple[tuple[Column, ...], ...]
# By stage type, columns with the device that they are entered from.
Menu = tuple[tuple[tuple[int, Column], ...], ...]


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Everything the solver needs, in numbers.

    Attributes:
        types: columns by stage type.
        chain: the type of each stage, in execution order.
        capacity: bytes by device index that columns may use.
        shared_bytes: of each shared tensor.
        price: seconds a byte, by device: what a byte must save to be worth its memory.
        first: device index where the first stage's input lies.
        menus: what of ``types`` can be optimal, by what is scarce: found once for all capacities.
    """

    types: Types
    chain: tuple[int, ...]
    capacity: tuple[int, ...]
    shared_bytes: tuple[tuple[str, int], ...] = ()
    price: tuple[float, ...] = ()
    first: int = 0
    menus: dict[object, tuple[Types, Menu]] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen column of every stage.

    ``status`` is ``optimal`` or ``time limit`` (then ``gap`` is what remains unproven, relative).
    """

    columns: tuple[Column, ...]
    seconds: float
    used_bytes: tuple[int, ...]
    status: str
    gap: float


def evaluate(problem: PlacementProblem, columns: Sequence[Column]) -> tuple[float, tuple[int, ...]]:
    """Seconds and bytes by device of a choice of columns."""
    seconds, at = 0.0, problem.first
    for column in columns:
        seconds += column.seconds[at]
        at = column.exit
    shared: set[tuple[str, int]] = set().union(*(column.shared for column in columns))
    sizes = dict(problem.shared_bytes)
    used = []
    for device in range(len(problem.capacity)):
        own = sum(column.n_bytes[device] for column in columns)
        used.append(own + sum(sizes[name] for name, where in shared if where == device))
    return seconds, tuple(used)


def priced(problem: PlacementProblem, seconds: float, used: Sequence[int]) -> float:
    """The objective: seconds plus the price of the bytes used."""
    return seconds + sum(price * n_bytes for price, n_bytes in zip(problem.price, used, strict=False))


def solve(
    problem: PlacementProblem, time_limit_seconds: float = 60.0, gap: float = 0.0, scarce: Sequence[int] = ()
) -> Solution | None:
    """The proven optimum, or one proven to be within ``gap`` of it (relative); None when nothing fits. ``scarce``:
    devices whose memory is known to be too small for what would be fastest."""
    tight = list(scarce)
    while True:
        outcome = _solve(problem, tight, time_limit_seconds, gap)
        if outcome is None:
            return None
        columns, status, proven = outcome
        seconds, used = evaluate(problem, columns)
        broken = [d for d, n_bytes in enumerate(used) if n_bytes > problem.capacity[d] and d not in tight]
        if not broken:
            return Solution(tuple(columns), seconds, used, status, proven)
        tight += broken


def least_overflow(problem: PlacementProblem) -> int:
    """Bytes by which the first device's capacity is short when the others are kept; 0 when everything fits."""
    # The cheapest column is now the one with the fewest bytes on the first device.
    bytes_as_time = tuple(
        tuple(replace(c, seconds=tuple(float(c.n_bytes[0]) for _ in c.seconds)) for c in columns)
        for columns in problem.types
    )
    capacity = (sum(max(c.n_bytes[0] for c in problem.types[kind]) for kind in problem.chain), *problem.capacity[1:])
    shared = sum(n_bytes for _, n_bytes in problem.shared_bytes)
    # A shared tensor counts once on the first device: as its price.
    smallest = replace(problem, types=bytes_as_time, capacity=(capacity[0] + shared, *capacity[1:]), price=())
    found = solve(smallest)
    return max(0, found.used_bytes[0] - problem.capacity[0]) if found else 0


def _solve(
    problem: PlacementProblem, tight: Sequence[int], time_limit_seconds: float, gap: float
) -> tuple[list[Column], str, float] | None:
    """Solves with memory rows for the devices in ``tight`` only."""
    devices = range(len(problem.capacity))
    price = problem.price or (0.0,) * len(devices)
    scarce = sorted({*tight, *(d for d in devices if price[d] > 0)})
    options = _menu(problem, tuple(scarce))
    model = _Model()
    path = [
        {(i, o): model.variable(1 if position or i == problem.first else 0) for i in devices for o in devices}
        for position in range(len(problem.chain))
    ]
    for position, edges in enumerate(path):
        model.row(dict.fromkeys(edges.values(), 1.0), 1.0, 1.0)
        if position:
            for d in devices[:-1]:  # the last device's row follows from the others
                entering = {edges[d, o]: -1.0 for o in devices}
                model.row({**entering, **{path[position - 1][i, d]: 1.0 for i in devices}}, 0.0, 0.0)
    counts: list[list[int]] = []
    for kind, pairs in enumerate(options):
        members = [position for position, other in enumerate(problem.chain) if other == kind]
        own = [
            model.variable(
                len(members), column.seconds[entry] + sum(p * b for p, b in zip(price, column.n_bytes, strict=True))
            )
            for entry, column in pairs
        ]
        counts.append(own)
        for i in devices:
            for o in devices:
                row = {at: 1.0 for at, (entry, c) in zip(own, pairs, strict=True) if (entry, c.exit) == (i, o)}
                model.row({**row, **{path[position][i, o]: -1.0 for position in members}}, 0.0, 0.0)
    sizes = dict(problem.shared_bytes)
    shared = sorted({use for columns in problem.types for column in columns for use in column.shared})
    shared_at = {use: model.variable(1, price[use[1]] * sizes[use[0]]) for use in shared}
    for use, at in shared_at.items():
        for kind, pairs in enumerate(options):
            row = {n: 1.0 for n, (_, column) in zip(counts[kind], pairs, strict=True) if use in column.shared}
            if row:
                model.row({**row, at: -float(problem.chain.count(kind))}, -np.inf, 0.0)
    for d in tight:
        row = {
            n: column.n_bytes[d] / _MIB
            for own, pairs in zip(counts, options, strict=True)
            for n, (_, column) in zip(own, pairs, strict=True)
        }
        row.update({at: sizes[name] / _MIB for (name, where), at in shared_at.items() if where == d})
        model.row(row, -np.inf, problem.capacity[d] / _MIB)

    outcome = model.solve(_SCALE / _typical(problem), time_limit_seconds, gap)
    if outcome is None:
        return None
    values, status, proven = outcome
    # Deal the counted columns out along the path, in the order in which the stages come.
    left = [[round(values[n]) for n in own] for own in counts]
    chosen = []
    for position, kind in enumerate(problem.chain):
        edge = next(edge for edge, at in path[position].items() if values[at] > 0.5)
        at = next(
            index
            for index, (entry, column) in enumerate(options[kind])
            if (entry, column.exit) == edge and left[kind][index]
        )
        left[kind][at] -= 1
        chosen.append(options[kind][at][1])
    return chosen, status, proven


def _menu(problem: PlacementProblem, scarce: tuple[int, ...]) -> Menu:
    key = id(problem.types), scarce
    if key not in problem.menus:
        devices = range(len(problem.capacity))
        menu = tuple(
            tuple((entry, column) for entry in devices for column in undominated(columns, scarce, entry))
            for columns in problem.types
        )
        problem.menus[key] = problem.types, menu  # kept beside it, so that no other types get their id
    return problem.menus[key][1]


class _Model:
    """Variables and rows of an integer programme, as they are collected."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.cost: list[float] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def variable(self, upper: float, cost: float = 0.0) -> int:
        self.upper.append(upper)
        self.cost.append(cost)
        return len(self.upper) - 1

    def row(self, coefficients: dict[int, float], low: float, high: float) -> None:
        self.rows.append((coefficients, low, high))

    def solve(self, scale: float, time_limit_seconds: float, gap: float) -> tuple[list[float], str, float] | None:
        n = len(self.upper)
        values = [value for row, _, _ in self.rows for value in row.values()]
        indices = [index for row, _, _ in self.rows for index in row]
        ends = np.cumsum([0] + [len(row) for row, _, _ in self.rows])
        matrix = csr_matrix((values, indices, ends), shape=(len(self.rows), n))
        low, high = (np.array([row[side] for row in self.rows]) for side in (1, 2))
        result = milp(
            np.array(self.cost) * scale,
            integrality=np.ones(n),
            bounds=Bounds(np.zeros(n), np.array(self.upper)),
            constraints=LinearConstraint(matrix, low, high),
            options={"time_limit": time_limit_seconds, "mip_rel_gap": gap},
        )
        if result.x is None:
            return None
        proven = float(result.mip_gap) if result.mip_gap is not None else 0.0
        return [float(x) for x in result.x], "optimal" if result.status == 0 else "time limit", proven


def _typical(problem: PlacementProblem) -> float:
    """The time of the workload with each stage at its fastest: a lower bound, for scaling."""
    least = [min((min(column.seconds) for column in columns), default=0.0) for columns in problem.types]
    return sum(least[kind] for kind in problem.chain) or 1.0
