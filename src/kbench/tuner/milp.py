"""The placement problem as a mixed-integer programme, for where labels do not come to an end.

Layers that cost the same are interchangeable, and a solver could spend its life telling their permutations apart.
Therefore columns are counted by stage type, and only the path of the hidden state is kept layer by layer:

    p[s, i, o]  in {0, 1}   the hidden state enters stage s on device i and leaves it on device o
    n[t, i, c]  integer     how many stages of type t run column c, entered from device i

    for every t, i, o:  sum of n over the columns that leave on o  =  sum of p over the stages of type t

Any solution deals its columns out to the stages of the path, so the optimum is that of placing every unit of every
layer on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from .column import Column, undominated

if TYPE_CHECKING:
    from .placement import PlacementProblem

# Rows of memory are written in MiB: HiGHS keeps rows to an absolute 1e-6 of their unit, which then is one byte.
_MIB = float(1 << 20)

# The objective is scaled so that the whole workload is about this much: HiGHS stops at an absolute gap of 1e-6, which
# then is a billionth of the time.
_SCALE = 1000.0


def solve_milp(
    problem: PlacementProblem, tight: Sequence[int], time_limit_seconds: float, gap: float
) -> tuple[list[Column], str, float] | None:
    """The columns of the optimum with memory rows for the devices in ``tight`` only, ``optimal`` or ``time limit``, and
    the gap that remains; None: nothing fits, or nothing was found in time."""
    devices = range(len(problem.capacity))
    price = problem.price or (0.0,) * len(devices)
    scarce = sorted({*tight, *(d for d in devices if price[d] > 0)})
    # By stage type, columns with the device that they are entered from.
    options = [[(entry, c) for entry in devices for c in undominated(of, scarce, entry)] for of in problem.types]
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
