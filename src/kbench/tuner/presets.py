"""Placements as other tools make them: each fills the GPU by a rule of thumb and asks nobody how long anything takes.

They are priced by the same model as the solver's answer, which therefore can show what it is worth, and must never lose
to one of them.

    whole layers     llama.cpp's ``-ngl``: the last N layers with the head, all of each
    front loading    the first N layers, all of each
    n-cpu-moe        llama.cpp's ``-ncmoe``: everything, but for the routed experts of the first N layers
    attention first  attention everywhere, then other dense parts, then routed experts, first layers first
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from .column import Column
from .layout import Layout
from .placement import PlacementProblem, Solution, evaluate

_EXPERTS = "routed experts"
_ATTENTION = ("attention", "q projections", "kv projections", "o projection", "linear attention")

_ByDevices = Mapping[tuple[int, ...], Column]

# Whether a unit goes to the GPU: (position of its stage, its kind).
_Wanted = Callable[[int, str], bool]


def presets(layout: Layout, problem: PlacementProblem, gpu: int = 1) -> dict[str, Solution]:
    """The fullest placement of each kind that fits; kinds of which none fits are left out.

    Args:
        gpu: index of the device that is filled; everything else is on device 0.
    """
    found = {}
    columns = [{column.devices: column for column in kind if not column.split} for kind in problem.types]
    for name, steps in _kinds(layout):
        best = None
        for wanted in steps:  # each wants more than the one before
            solution = _place(layout, problem, columns, gpu, wanted)
            if solution is None and best is not None:
                break
            best = solution or best
        if best is not None:
            found[name] = best
    return found


def _kinds(layout: Layout) -> Iterator[tuple[str, Iterator[_Wanted]]]:
    n = len(layout.stages)

    def embedding(position: int) -> bool:
        return position == 0

    def last(count: int) -> _Wanted:
        return lambda position, kind: not embedding(position) and position >= n - count

    def first(count: int) -> _Wanted:
        return lambda position, kind: not embedding(position) and position <= count

    def experts_from(start: int) -> _Wanted:
        return lambda position, kind: not embedding(position) and (kind != _EXPERTS or position > start)

    yield "whole layers", (last(count) for count in range(n))
    yield "front loading", (first(count) for count in range(n))
    yield "n-cpu-moe", (experts_from(start) for start in range(n, -1, -1))
    yield "attention first", _by_priority(layout)


def _by_priority(layout: Layout) -> Iterator[_Wanted]:
    def rank(kind: str) -> int:
        return 2 if kind == _EXPERTS else 0 if kind in _ATTENTION else 1

    units = [(position, unit.kind) for position, stage in enumerate(layout.stages) for unit in stage.units]
    ordered = sorted((unit for unit in units if unit[0]), key=lambda unit: (rank(unit[1]), unit[0]))
    for count in range(len(ordered) + 1):
        chosen = frozenset(ordered[:count])
        yield lambda position, kind, chosen=chosen: (position, kind) in chosen  # type: ignore[misc]


def _place(
    layout: Layout, problem: PlacementProblem, known: Sequence[_ByDevices], gpu: int, wanted: _Wanted
) -> Solution | None:
    columns: list[Column] = []
    for position, (stage, kind) in enumerate(zip(layout.stages, problem.chain, strict=True)):
        by_devices = known[kind]
        devices = [gpu if wanted(position, unit.kind) else 0 for unit in stage.units]
        column = by_devices.get(tuple(devices))
        if column is None:  # what has no kernel on the GPU stays
            devices = [0 if unit.kind == _EXPERTS else d for unit, d in zip(stage.units, devices, strict=True)]
            column = by_devices.get(tuple(devices))
        if column is None:
            return None
        columns.append(column)
    return _if_it_fits(problem, columns)


def _if_it_fits(problem: PlacementProblem, columns: Sequence[Column]) -> Solution | None:
    seconds, used = evaluate(problem, columns)
    if any(n_bytes > room for n_bytes, room in zip(used, problem.capacity, strict=True)):
        return None
    return Solution(tuple(columns), seconds, used, "preset", float("nan"))
