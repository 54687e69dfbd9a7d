"""`kbench track check`: whether a change makes anything slower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import InvalidEnvironment, UserError, default_threads

from .exports import FormatOption, OutputOption, export_verdicts, planned_exports, takes_stdout
from .limits import positive_seconds
from .options_taken import refuse_untaken
from .output import print_json, progress_bar, shown, stdout_console
from .revisions import INSTALLED, built_revision, check_revision, default_revision, tell
from .track_common import (
    SUITE,
    FilterOption,
    JsonOption,
    MarginOption,
    SuiteOption,
    cells_of,
    floor_of,
    plan_of,
    recorded,
    warn,
)
from .verdicts import case_fields, checked_exit, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbench.measure import Plan
    from kbench.results import NoiseFloor, Record, Store, VerdictRow
    from kbench.suites import Built, Cell, Outcome


_ALWAYS = frozenset({
    "--baseline", "--rev", "--margin", "--max-seconds", "--allow-inconclusive", "--format", "--output", "--json",
})  # fmt: skip
_OPERATIONS, _MODEL = "a check of operations", "a check of a model"
_TAKEN = {_OPERATIONS: _ALWAYS | {"--suite", "--filter"}, _MODEL: _ALWAYS | {"--model"}}


def check(
    context: typer.Context,
    baseline: Annotated[str, typer.Option(metavar="REF|FILE", help="A git revision, or a file of records.")],
    suite: SuiteOption = SUITE,
    rev: Annotated[
        str | None, typer.Option(help=f"What to check: a git revision (HEAD in a checkout), or {INSTALLED}.")
    ] = None,
    pattern: FilterOption = "",
    model: Annotated[
        Path | None, typer.Option(help="A .gguf file: its prefill and decode are checked, in place of a suite.")
    ] = None,
    margin: MarginOption = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            callback=positive_seconds,
            help="Of pairs of a case, before confirmation. Default: 20, models 100. Not with a file.",
        ),
    ] = None,
    allow_inconclusive: Annotated[
        bool, typer.Option("--allow-inconclusive", help="Exit with 0 where nothing is known to be slower.")
    ] = False,
    formats: FormatOption = None,
    outputs: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether a change makes anything slower: exit code 1 only if it does, with the cases' names.

    The baseline is a revision, which is built and measured in pairs with the change; where it cannot be built, or is a
    file, its stored blocks are compared with fresh ones, with a wider interval. The margin of a case is never below the
    noise that kbench track aa found for it here.

    Exit codes: 0 nothing is slower · 1 slower · 2 a mistake · 3 not known · 4 this machine cannot say · 5 a side broke.

    Example: kbench track check --baseline origin/main
    """
    from kbench.measure import host
    from kbench.model import describe_gguf, open_gguf
    from kbench.results import Store, by_importance

    refuse_untaken(context, _OPERATIONS if model is None else _MODEL, _TAKEN)
    planned = planned_exports(formats, outputs, as_json)
    store, plan = Store(), plan_of(margin)
    cells = cells_of(suite, pattern) if model is None else ()
    floor = floor_of(store)
    notes: list[str] = []
    outcomes: list[Outcome] = []
    candidate_name = rev or default_revision()
    # Builds take minutes: what is mistaken is told before them.
    stored = _stored(baseline, model, max_seconds, store) if _is_file(baseline) else []
    for name in (candidate_name, *(() if stored else (baseline,))):
        check_revision(name)
    if model is not None:
        describe_gguf(open_gguf(model))
    candidate = built_revision(candidate_name)
    base: Built | None = None
    if not stored:
        base, stored = _baseline(baseline, model, store, notes)
        if base is None and max_seconds is not None:
            notes.append("--max-seconds is of pairs: blocks took the time that they take")
    if model is not None:
        assert base is not None  # else there was an error
        rows = [each.row() for each in _engines(model, base, candidate, margin, max_seconds, store)]
    elif base is not None:
        outcomes = _paired(cells, base, candidate, plan, floor, max_seconds, store)
        rows = [outcome.row() for outcome in outcomes]
    else:
        rows = _unpaired(cells, stored, baseline, candidate, plan, floor, store, suite, notes)
    rows = by_importance(rows)
    if floor.n:
        notes.append(
            f"this machine's own noise: {floor.overall:.1%} in 95 % of {floor.n} comparisons of identical things"
        )
    fields: dict[str, Any] = {
        "kind": "track", "a": baseline, "b": candidate.name, "host_id": host().host_id, "suite": suite,
        "commits": {"a": (base.commit if base else "") or "", "b": candidate.commit or ""},
        "paired": base is not None, "cases": [case_fields(row) for row in rows], "summary": summary(outcomes),
        "noise_floor": floor.overall, "notes": notes,
    }  # fmt: skip
    if as_json:
        print_json("track.check", 1, fields)
    elif not takes_stdout(planned):
        from kbench.report import print_comparison

        print_comparison(stdout_console(), fields, shown)
        warn(notes)
        for row in rows:
            for text in row.extra.get("discarded", ()):
                tell(f"{row.case}: thrown away and taken again: {text}")
    export_verdicts(planned, "kbench track check", rows, change=True, notes=notes, commit=candidate.commit or "")
    checked_exit(rows, allow_inconclusive=allow_inconclusive)


def _is_file(baseline: str) -> bool:
    return Path(baseline).suffix == ".jsonl" or Path(baseline).is_file()


def _stored(name: str, model: Path | None, max_seconds: float | None, store: Store) -> list[Record]:
    """The records of a file, newest last.

    Raises:
        UserError: no such file, or an option that does nothing to stored blocks.
        InvalidEnvironment: the records are another machine's.
    """
    from kbench.measure import host
    from kbench.results import blocks_of, hosts_differ, one_host, read_records

    if model is not None:
        raise UserError(f"{name} is no revision", where="--model", accepted="a baseline that can be built")
    if max_seconds is not None:
        raise UserError(f"{name} holds stored blocks, and no pairs are taken", where="--max-seconds",
                        accepted="a baseline that is a revision")  # fmt: skip
    records = read_records(Path(name))
    theirs = one_host(blocks_of(records), name)
    if theirs != host().host_id:
        differ = hosts_differ(Path(name), store.root / host().host_id / "host.json")
        raise InvalidEnvironment(
            f"its records are of host {theirs}, this is {host().host_id}", where=name, accepted="this machine's",
            todo="; ".join(differ),
        )  # fmt: skip
    return records


def _baseline(
    name: str, model: Path | None, store: Store, notes: list[str]
) -> tuple[Built | None, list[Record]]:  # fmt: skip
    """The baseline ready to run, or else its stored records of this host, newest last.

    Raises:
        UserError: no such revision.
        BuildFailed: it cannot be built, and nothing is stored of it that takes its place.
    """
    from kbench.measure import host
    from kbench.results import Store, blocks_of
    from kbench.suites import BuildFailed, find_revision, repository_of

    try:
        return built_revision(name), []
    except BuildFailed as error:
        if model is not None:  # a model's speed is told by pairs alone
            raise
        repository = repository_of(Path.cwd())
        assert repository is not None  # else there was nothing to build
        commit = find_revision(repository, name).commit
        # Baselines may be committed beside the code; scratch results are the store's own, which may be the same folder.
        roots = dict.fromkeys(root.resolve() for root in (repository / "results", store.root))
        records = [
            record
            for one in map(Store, roots)
            for record in one.find(host_id=host().host_id, commit=commit, status="ok")
        ]
        if not blocks_of(records):
            raise
        notes.append(f"{error.found.splitlines()[0]}: {name}'s stored blocks take its place")
        return None, records


def _paired(
    cells: Sequence[Cell], base: Built, candidate: Built, plan: Plan, floor: NoiseFloor, max_seconds: float | None,
    store: Store,
) -> list[Outcome]:  # fmt: skip
    from kbench.suites import compare_revisions

    options: dict[str, Any] = {} if max_seconds is None else {"max_seconds": max_seconds}
    with progress_bar() as bar:
        task = bar.add_task("check", total=len(cells))

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70] or "check")

        return compare_revisions(cells, base, candidate, store, plan, floor=floor, progress=progress, **options)


def _engines(
    model: Path, base: Built, candidate: Built, margin: float | None, max_seconds: float | None, store: Store
) -> list[Outcome]:
    from kbench.suites import Workload, compare_engines, engine_plan, revision_engines

    threads, workload = default_threads(), Workload()
    sides = revision_engines(base, candidate, model, threads, workload)
    options: dict[str, Any] = {} if max_seconds is None else {"max_seconds": max_seconds}
    with progress_bar() as bar:
        task = bar.add_task("loading", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70])

        return compare_engines(
            model, sides, store, threads=threads, workload=workload, progress=progress,
            plan=engine_plan(None if margin is None else margin / 100), **options,
        )  # fmt: skip


def _unpaired(
    cells: Sequence[Cell], stored: Sequence[Record], name: str, candidate: Built, plan: Plan, floor: NoiseFloor,
    store: Store, suite: str, notes: list[str],
) -> list[VerdictRow]:  # fmt: skip
    from kbench.measure import ASSUMED_BETWEEN, host
    from kbench.results import blocks_of, compare_recorded, deviation_between_runs
    from kbench.suites import Recorder

    wanted = {(cell.key, cell.implementation) for cell in cells}
    records = recorded(Recorder(candidate), cells, store, suite)
    own = deviation_between_runs(store.read(host().host_id))
    between = ASSUMED_BETWEEN if own is None else own
    notes.append(f"blocks of other times are no pairs: {between:.1%} a run is allowed for "
                 f"({'measured here' if own is not None else 'assumed'})")  # fmt: skip
    sides = [
        {identity: blocks for identity, blocks in blocks_of(side).items() if identity[:2] in wanted}
        for side in (stored, records)
    ]
    margins = {identity: floor.margin(*identity[:2]) for side in sides for identity in side}
    rows = compare_recorded(sides[0], sides[1], plan, (name, candidate.name), between=between, margins=margins)
    return [*rows, *_unmeasured(records, name, candidate.name)]


def _unmeasured(records: Sequence[Record], a: str, b: str) -> list[VerdictRow]:
    """Rows of what could not be measured now."""
    from kbench.results import VerdictRow

    return [
        VerdictRow(each.key, a, b, "disturbed" if each.status == "skipped" else each.status, each.reason,  # type: ignore[arg-type]
                   implementation=each.implementation, threads=each.threads)
        for each in {(r.key, r.implementation): r for r in records if r.status != "ok"}.values()
    ]  # fmt: skip
