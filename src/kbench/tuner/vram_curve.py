"""Tokens per second against GPU memory: the same model, machine and workload, solved for a row of budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kbench.core import CPU, Phase
from kbench.results import SOLD_GIB

from .layout import Layout
from .placement import PlacementProblem, Solution, solve

# Steps between nothing and all that helps; the curve bends where the next kind of unit begins to move.
_STEPS = 8

# A point need not be proven better than a pixel of the curve: all of it in a second or two instead of minutes.
GAP = 5e-3
_MAX_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Point:
    """The fastest placement with ``vram_bytes`` of GPU memory; None where not even the host's memory takes the rest."""

    vram_bytes: int
    solution: Solution | None


def vram_curve(problem: PlacementProblem, gpu: int, total_bytes: int) -> list[Point]:
    """Points by rising budget of device index ``gpu``, whose budget in ``problem`` is ``total_bytes`` in all.

    The largest is twice that, or the largest card's. Each is within ``GAP`` of its optimum, and none is slower than one
    with less memory.
    """
    overhead = total_bytes - problem.capacity[gpu]  # runtime, workspace, margin: gone before the first weight
    largest = max(2 * total_bytes, max(SOLD_GIB) << 30)
    at_most = _solve(problem, gpu, largest - overhead)
    useful = min(largest, overhead + (at_most.used_bytes[gpu] if at_most else 0))
    steps = (overhead + (useful - overhead) * step // _STEPS for step in range(1, _STEPS + 1))
    sizes = sorted({0, total_bytes, largest, *(gib << 30 for gib in SOLD_GIB), *steps}, reverse=True)
    found: list[Point] = []
    last = at_most
    for size in sizes:
        # What is best with more memory and fits in less is best there too.
        if last is None or last.used_bytes[gpu] > max(0, size - overhead):
            last = _solve(problem, gpu, size - overhead, (gpu,))
        found.append(Point(size, last))
    points: list[Point] = []
    for point in reversed(found):
        less = points[-1].solution if points else None
        slower = point.solution is None or (less is not None and less.seconds < point.solution.seconds)
        points.append(Point(point.vram_bytes, less) if slower else point)
    return points


def _solve(problem: PlacementProblem, gpu: int, capacity: int, scarce: Sequence[int] = ()) -> Solution | None:
    capacities = (*problem.capacity[:gpu], max(0, capacity), *problem.capacity[gpu + 1 :])
    return solve(replace(problem, capacity=capacities), _MAX_SECONDS, GAP, scarce)


def phase_seconds(layout: Layout, solution: Solution, first: int = 0) -> dict[Phase, float]:
    """Seconds of one step of each phase: the sum over stages, which is exact between them."""
    known: dict[object, float] = {}
    totals = dict.fromkeys(Phase, 0.0)
    at = first
    for stage, column in zip(layout.stages, solution.columns, strict=True):
        for phase in Phase:
            # Stages that share their columns cost the same; the tuple object is shared by all of a type.
            key = (id(column), at, phase)
            if key not in known:
                known[key] = layout.stage_seconds(stage, column.devices, at, phase, column.split)
            totals[phase] += known[key]
        at = column.exit
    return totals


def curve_rows(layout: Layout, problem: PlacementProblem, gpu: int, total_bytes: int) -> list[dict[str, Any]]:
    """The curve as the JSON object has it. ``used_bytes`` is None where nothing fits."""
    return [_row(layout, point, gpu) for point in vram_curve(problem, gpu, total_bytes)]


def _row(layout: Layout, point: Point, gpu: int) -> dict[str, Any]:
    if point.solution is None:
        return {"vram_bytes": point.vram_bytes, "used_bytes": None}
    seconds = phase_seconds(layout, point.solution)
    used: Sequence[int] = point.solution.used_bytes
    return {
        "vram_bytes": point.vram_bytes,
        "used_bytes": used[gpu],
        "dram_used_bytes": used[layout.devices.index(CPU)],
        "decode_tokens_per_s": layout.plan.batch / seconds[Phase.DECODE],
        "prefill_tokens_per_s": layout.plan.workload.prefill_tokens_per_s(seconds[Phase.PREFILL]),
        "workload_seconds": point.solution.seconds,
    }
