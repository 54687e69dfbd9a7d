"""What the sub-commands of `kbench track` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import CPU, UserError

from .output import progress_bar, shown, stderr_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbench.measure import Plan
    from kbench.results import NoiseFloor, Record, Store
    from kbench.suites import Built, Cell

SUITE = "track"

SuiteOption = Annotated[str, typer.Option(help="A suite's name or a YAML file.")]
FilterOption = Annotated[str, typer.Option("--filter", metavar="KEY", help="Only cases that hold or glob this.")]
MarginOption = Annotated[float | None, typer.Option(help="Least change of interest, in percent. Default: 3.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def cells_of(suite: str, pattern: str) -> Sequence[Cell]:
    from kbench.suites import expand, load_suite, select

    loaded = load_suite(suite)
    cells = [] if loaded.ladder else [cell for cell in expand(loaded) if cell.device == CPU]
    if not cells:
        what = "is a ladder" if loaded.ladder else "has none"
        raise UserError(f"{suite} {what}", where="--suite", accepted="a suite of operations on the CPU")
    return select(cells, pattern) if pattern else cells


def plan_of(margin: float | None) -> Plan:
    from kbench.measure import Plan

    if margin is not None and not 0 <= margin < 100:
        raise UserError(f"{margin:g}", where="--margin", accepted="percent, from 0 to below 100")
    return Plan() if margin is None else Plan(margin=margin / 100)


def floor_of(store: Store) -> NoiseFloor:
    from kbench.measure import host
    from kbench.results import noise_floor

    return noise_floor(store.read(host().host_id))


def recorded(recorder: Any, cells: Sequence[Cell], store: Store, suite: str) -> list[Record]:
    from kbench.suites import load_suite

    with progress_bar() as bar:
        task = bar.add_task("record", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70] or "record")

        found: list[Record] = recorder.record(cells, store, suite=load_suite(suite).name, progress=progress)
        return found


def named(built: Built) -> str:
    return f"{built.name} ({built.commit[:8]})" if built.commit else built.name


def warn(texts: Sequence[str]) -> None:
    for text in texts:
        stderr_console().print(shown(text), markup=False)
