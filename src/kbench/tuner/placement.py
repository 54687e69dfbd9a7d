"""Exact placement: one column for every stage, least time, under every device's memory budget.

    p[s, i, o]  in {0, 1}   the hidden state enters stage s on device i and leaves it on device o
    n[s, i, c]  in {0, 1}   stage s runs column c, entered from device i

    minimise    sum of seconds[s,i,c] * n[s,i,c]  +  price of the bytes
    such that   p is a path from the first stage to the last
                for every s, i, o:  sum of n over the columns that leave on o  =  p[s,i,o]
                the bytes of the chosen columns fit each device's capacity
                a shared tensor's bytes count once on each device that uses it

Without the memory's rows that is a shortest path. With rows for one or two devices it is a shortest path with limits,
which ``labels`` solves; for more of them, or where it does not come to an end, ``milp`` does. Rows are added only when
the optimum without them breaks them: a relaxation whose optimum is feasible has found the optimum.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .arcs import Arcs, few_shared
from .column import Column
from .labels import shortest

Types = tuple[tuple[Column, ...], ...]

# Labels are compared in what they need of each scarce device; with a third hardly any is worse than another.
_MOST_SCARCE = 2


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
        prepared: arcs of ``types`` by what is scarce, found once for all capacities.
    """

    types: Types
    chain: tuple[int, ...]
    capacity: tuple[int, ...]
    shared_bytes: tuple[tuple[str, int], ...] = ()
    price: tuple[float, ...] = ()
    first: int = 0
    prepared: dict[object, tuple[Types, Arcs | None]] = field(default_factory=dict, compare=False, repr=False)


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
    started = time.monotonic()
    arcs = _arcs(problem, tuple(tight)) if len(tight) <= _MOST_SCARCE else None
    if arcs is None:
        return _by_milp(problem, tight, time_limit_seconds, gap)
    found = shortest(arcs, time_limit_seconds, gap)
    columns = None if found.path is None else arcs.columns(found.path)
    if found.gap <= gap:
        return None if columns is None else (columns, "optimal", found.gap)
    left = time_limit_seconds - (time.monotonic() - started)
    other = _by_milp(problem, tight, left, gap) if left > 0 else None
    if other is None or columns is None:
        return other if columns is None else (columns, "time limit", found.gap)
    ours, theirs = (priced(problem, *evaluate(problem, of)) for of in (columns, other[0]))
    best, chosen = min((ours, columns), (theirs, other[0]), key=lambda pair: pair[0])
    # Each has proven what nothing can be below.
    proven = 1 - max(ours * (1 - found.gap), theirs * (1 - other[2])) / best if best else 0.0
    return chosen, "optimal" if proven <= gap or other[1] == "optimal" else "time limit", max(0.0, proven)


def _by_milp(
    problem: PlacementProblem, tight: Sequence[int], time_limit_seconds: float, gap: float
) -> tuple[list[Column], str, float] | None:
    from .milp import solve_milp  # loads scipy's optimizers, which hardly any problem needs: 0.3 s of every start

    return solve_milp(problem, tight, time_limit_seconds, gap)


def _arcs(problem: PlacementProblem, scarce: tuple[int, ...]) -> Arcs | None:
    """None where too much is shared for them."""
    key = id(problem.types), problem.price, scarce, problem.first
    if key not in problem.prepared:
        arcs = Arcs(problem, scarce) if few_shared(problem) else None
        problem.prepared[key] = problem.types, arcs  # beside it, so that no other types get their id
    arcs = problem.prepared[key][1]
    return arcs and arcs.within(problem.capacity)
