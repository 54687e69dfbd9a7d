"""Two revisions of kbench against each other, each with its own interpreter; or one with itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kbench.measure import Guard, Plan, Side
from kbench.results import AA_SUITE, NoiseFloor, Store

from .cell import Cell
from .compare_engines import Workload, engine_side
from .compare_ops import MAX_SECONDS, compare_ops
from .contest import Contest, Outcome
from .revision import Built
from .runner import Progress


def revision_side(name: str, built: Built) -> Side:
    """A process that times operations with the kbench of ``built``."""
    return Side(name, ["-m", "kbench.suites.op_side"], **_where(built))


def _where(built: Built) -> dict[str, Any]:
    return {"python": built.python, "environment": dict(built.environment or {}), "folder": built.folder}


def side_names(a: Built, b: Built) -> tuple[str, str]:
    """What tables call them; told apart where both are called the same."""
    return (a.name, b.name) if a.name != b.name else (f"A ({a.name})", f"B ({b.name})")


def revision_contests(cells: Iterable[Cell], names: tuple[str, str], floor: NoiseFloor | None = None) -> list[Contest]:
    """Each cell on both sides; with a margin that is never below the cell's own noise here."""
    found = []
    for cell in cells:
        margin = floor.margin(cell.key, cell.implementation) if floor is not None else 0.0
        found.append(
            Contest(cell.problem, cell.implementation, cell.implementation, cell.threads, cell.block, names, margin)
        )
    return found


def compare_revisions(
    cells: Sequence[Cell],
    a: Built,
    b: Built,
    store: Store | None,
    plan: Plan,
    *,
    floor: NoiseFloor | None = None,
    max_seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
    guard: Guard | None = None,
    suite: str = "track",
) -> list[Outcome]:
    """``compare_ops`` of each cell under ``a`` and under ``b``."""
    names = side_names(a, b)
    return compare_ops(
        revision_contests(cells, names, floor), store, plan, max_seconds=max_seconds, progress=progress, guard=guard,
        make_side=lambda which, name: revision_side(names[which], (a, b)[which]), suite=suite,
        about={"commits": [a.commit or "", b.commit or ""]},
    )  # fmt: skip


def compare_with_itself(
    cells: Sequence[Cell],
    built: Built,
    store: Store | None,
    plan: Plan,
    *,
    n: int = 1,
    max_seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
    guard: Guard | None = None,
) -> list[Outcome]:
    """Every cell against itself, ``n`` times, each by itself with processes of its own: all error rate is its own."""
    outcomes: list[Outcome] = []
    names = side_names(built, built)
    todo = [cell for _ in range(n) for cell in cells]
    for done, cell in enumerate(todo):
        if progress is not None:
            progress(done, len(todo), str(cell))
        outcomes += compare_ops(
            revision_contests([cell], names), store, plan, max_seconds=max_seconds, guard=guard, suite=AA_SUITE,
            make_side=lambda which, name: revision_side(names[which], built), about={"aa": True},
        )  # fmt: skip
    if progress is not None and todo:
        progress(len(todo), len(todo), "")
    return outcomes


def revision_engines(
    a: Built, b: Built, model: Path, threads: int, workload: Workload, rules: Path | None = None
) -> tuple[Side, Side]:
    """The engines of both revisions on ``model``, not started yet."""
    path = model.resolve()  # a side may run in another folder
    first, second = (
        engine_side(name, path, "kbench", threads, workload.context, rules and rules.resolve(), **_where(built))
        for name, built in zip(side_names(a, b), (a, b), strict=True)
    )
    return first, second


def commits_of(a: Built, b: Built) -> Mapping[str, str]:
    """Both sides' commits by their names, for output."""
    return dict(zip(side_names(a, b), (a.commit or "installed", b.commit or "installed"), strict=True))
