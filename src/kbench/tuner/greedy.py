"""Greedy placement by density: what a person with a calculator would do, and the oracle that the solver must beat.

Units move to the accelerator in the order of seconds saved per byte of its memory (arithmetic intensity in disguise),
as long as they fit and save anything; crossings and overlap are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from .column import Column
from .placement import PlacementProblem, Solution, evaluate, priced


def greedy(problem: PlacementProblem) -> Solution | None:
    """A feasible placement found by density, or None when it finds none (the solver may still find one)."""
    best: Solution | None = None
    for start in range(len(problem.capacity)):
        found = _climb(problem, start)
        if found and (best is None or _objective(problem, found) < _objective(problem, best)):
            best = found
    return best


def _objective(problem: PlacementProblem, solution: Solution) -> float:
    return priced(problem, solution.seconds, solution.used_bytes)


def _climb(problem: PlacementProblem, start: int) -> Solution | None:
    """From everything on device ``start`` (or where it can be), single moves by density as long as they pay."""
    by_devices = [{column.devices: column for column in columns if not column.split} for columns in problem.types]
    chosen = [
        min(problem.types[kind], key=lambda c: (sum(d != start for d in c.devices), c.seconds))
        for kind in problem.chain
    ]
    moves = []
    for position, kind in enumerate(problem.chain):
        base = chosen[position]
        for unit in range(len(base.devices)):
            for device in range(len(problem.capacity)):
                moved = by_devices[kind].get(_with(base.devices, unit, device))
                if device == base.devices[unit] or moved is None:
                    continue
                saved = min(base.seconds) - min(moved.seconds)
                needed = max(moved.n_bytes[device] - base.n_bytes[device], 1)
                moves.append((saved / needed, position, unit, device))
    best = _keep(problem, chosen, None)
    for _, position, unit, device in sorted(moves, key=lambda move: (-move[0], move[1:])):
        moved = by_devices[problem.chain[position]].get(_with(chosen[position].devices, unit, device))
        if moved is None:
            continue
        trial = [*chosen[:position], moved, *chosen[position + 1 :]]
        _, used = evaluate(problem, trial)
        _, used_now = evaluate(problem, chosen)
        # A move may leave a device over its budget only if it was over it and now is less so.
        if all(n <= c or n <= m for n, m, c in zip(used, used_now, problem.capacity, strict=True)):
            chosen = trial
            best = _keep(problem, chosen, best)
    return best


def _with(devices: tuple[int, ...], unit: int, device: int) -> tuple[int, ...]:
    return (*devices[:unit], device, *devices[unit + 1 :])


def _keep(problem: PlacementProblem, columns: Sequence[Column], best: Solution | None) -> Solution | None:
    """The better of ``best`` and ``columns``, if those fit."""
    seconds, used = evaluate(problem, columns)
    if any(n > c for n, c in zip(used, problem.capacity, strict=True)):
        return best
    found = Solution(tuple(columns), seconds, used, "greedy", float("nan"))
    return found if best is None or _objective(problem, found) < _objective(problem, best) else best
