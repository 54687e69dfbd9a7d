"""`kbench compare`: implementations, engines, rule files, revisions or recorded runs against each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import UserError, default_threads

from .compare_sides import ENGINES, IMPLEMENTATIONS, RECORDED, REVISIONS, RULES, TAKEN, sides_of
from .exports import FormatOption, OutputOption, export_verdicts, planned_exports, takes_stdout
from .limits import positive_seconds, usable_threads
from .options_taken import refuse_untaken
from .output import print_json, progress_bar, shown, stderr_console, stdout_console
from .revisions import built_revision, check_revision
from .verdicts import case_fields, compared_exit, summary

if TYPE_CHECKING:
    from kbench.core import Problem
    from kbench.results import Record, VerdictRow
    from kbench.suites import Outcome

    from .compare_sides import Sides

_HELP = """Compare two implementations, engines, rule files or git revisions in pairs, or two recorded runs.

Each side is a process of its own; they take turns A B, B A, ... with the same inputs, cold caches and as many threads.
Correctness comes first: a side whose result is wrong is an error, not a fast one. The verdict has a known error rate
(docs/statistics.md): the ratio with its interval against a margin, more pairs while that is inconclusive, fresh pairs
before anything is called a change.

A and B are

  implementations    torch, cpu.avx2, cpu.scalar, kt, marlin, triton, ...; cpuinfer is the best of our CPU kernels
                     here, with KTransformers' own beside it where kt-kernel is installed

  engines            kbench, llama.cpp, ik_llama.cpp with --model; options follow: kbench:planes=1; kbench ktransformers
                     compares what both have: a layer of routed experts, with kt-kernel

  rule files         a.yaml b.yaml with --model

  git revisions      --rev main --rev HEAD in a checkout of kbench, in place of A and B: each is built in a worktree and
                     an environment of its own, once; with --model their engines

  recorded runs      a.jsonl b.jsonl, of kbench track record or kbench bench: no pairs, hence a wider interval

Examples:

  [bold]kbench compare cpuinfer torch[/bold]

  [bold]kbench compare kbench llama.cpp --model smollm2.gguf[/bold]

  [bold]kbench compare old.yaml new.yaml --model smollm2.gguf --fail-on-regression[/bold]

  [bold]kbench compare --rev main --rev HEAD --filter 'linear*tokens=1,*'[/bold]
"""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("compare", help=_HELP)
    def _compare(
        context: typer.Context,
        a: Annotated[
            str | None, typer.Argument(metavar="A", help="An implementation, an engine, a rule file or a run.")
        ] = None,
        b: Annotated[str | None, typer.Argument(metavar="B", help="What it is compared with.")] = None,
        rev: Annotated[
            list[str] | None, typer.Option("--rev", metavar="REV", help="Twice: git revisions in place of A and B.")
        ] = None,
        model: Annotated[
            str | None,
            typer.Option(help="A .gguf file; for implementations a config.json or an embedded model's name will do."),
        ] = None,
        suite: Annotated[
            str,
            typer.Option(
                help="Shapes for implementations: a suite's name or file. Default: compare; ops-gpu on a GPU."
            ),
        ] = "",
        pattern: Annotated[
            str, typer.Option("--filter", metavar="KEY", help="Only cases that hold or glob this.")
        ] = "",
        threads: Annotated[
            int | None,
            typer.Option(min=1, callback=usable_threads, help="Of both sides. Default: one per physical core."),
        ] = None,
        margin: Annotated[
            float | None, typer.Option(help="Least change of interest, in percent. Default: 3, engines 5.")
        ] = None,
        max_seconds: Annotated[
            float | None,
            typer.Option(
                callback=positive_seconds, help="Of pairs, before confirmation: of a shape 20, of engines 100."
            ),
        ] = None,
        prompt_tokens: Annotated[int, typer.Option(min=1, help="Prefill of a turn.")] = 128,
        gen_tokens: Annotated[int, typer.Option(min=1, help="Tokens that a turn generates.")] = 16,
        fail: Annotated[bool, typer.Option("--fail-on-regression", help="Exit with 1 when B is slower.")] = False,
        formats: FormatOption = None,
        outputs: OutputOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        from kbench.measure import Guard, host
        from kbench.report import print_comparison
        from kbench.results import Store

        if margin is not None and not 0 <= margin < 100:
            raise UserError(f"{margin:g}", where="--margin", accepted="percent, from 0 to below 100")
        planned = planned_exports(formats, outputs, as_json)
        share = None if margin is None else margin / 100
        sides = sides_of(a, b, rev or [], model)
        refuse_untaken(context, sides.kind, TAKEN)
        a, b = sides.a, sides.b
        threads = threads or default_threads()
        store, guard = Store(), Guard()
        notes: list[str] = []
        sizes = (prompt_tokens, gen_tokens)
        outcomes: list[Outcome] = []
        if sides.kind == RECORDED:
            rows, notes = _recorded(a, b, pattern, share)
        else:
            if sides.kind == IMPLEMENTATIONS:
                outcomes, notes = _implementations(sides, model, suite, pattern, threads, share, max_seconds, store)
            elif sides.kind == REVISIONS:
                outcomes = _revisions(a, b, suite, pattern, share, max_seconds, store)
            else:
                outcomes = _engines(sides, model, threads, share, max_seconds, sizes, store)
            rows = [outcome.row() for outcome in outcomes]
        warnings = list(guard.warnings()) if outcomes else []
        fields: dict[str, Any] = {
            "kind": sides.word, "a": a, "b": b, "host_id": host().host_id,
            # Where the option is not taken, each case says its own.
            "threads": threads if "--threads" in TAKEN[sides.kind] else None,
            "cases": [case_fields(row) for row in rows],
            # Prefill and decode of engines come from the same pairs: their noise is no two cases'.
            "summary": summary(outcomes) if sides.kind in (IMPLEMENTATIONS, REVISIONS) else [],
            "notes": notes, "warnings": warnings,
        }  # fmt: skip
        if as_json:
            print_json("compare", 1, fields)
        elif not takes_stdout(planned):
            print_comparison(stdout_console(), fields, shown)
            for text in (*notes, *(f"warning: {warning}" for warning in warnings)):
                stderr_console().print(shown(text), markup=False)
            if outcomes:
                stderr_console().print(f"{len(rows)} comparisons on host {host().host_id}; records in {store.root}")
        is_change = sides.kind not in (IMPLEMENTATIONS, ENGINES)
        export_verdicts(planned, "kbench compare", rows, change=is_change, notes=[*notes, *warnings])
        compared_exit(rows, fail)


def _implementations(
    sides: Sides, model: str | None, suite: str, pattern: str, threads: int, margin: float | None,
    max_seconds: float | None, store: Any,
) -> tuple[list[Outcome], list[str]]:  # fmt: skip
    from kbench.measure import Plan
    from kbench.suites import check_names, compare_ops, contests, expand, load_suite, matches, missing_peers, on_gpu

    a, b = sides.implementations
    check_names((a, b))
    if model is not None and suite:
        raise UserError(f"{suite} beside {model}", where="--suite and --model", accepted="one: both say which shapes")
    suite = suite or ("ops-gpu" if on_gpu((a, b)) else "compare")
    problems: list[Problem]
    if model is not None:
        problems = _problems_of(model)
    else:
        problems = list(dict.fromkeys(cell.problem for cell in expand(load_suite(suite))))
    if sides.of_experts:
        problems = [problem for problem in problems if problem.op == "moe_experts"]
        if not problems:
            raise UserError("no routed experts", where=model or suite, accepted="shapes with moe_experts, for kt")
    chosen = [problem for problem in problems if matches(problem.key, pattern)]
    if not chosen:
        examples = ", ".join(problem.key for problem in problems[:3])
        raise UserError(f"filter {pattern!r} matches no case", accepted=f"a part or glob of keys such as {examples}")
    wanted = contests(chosen, a, b, threads)
    plan = Plan() if margin is None else Plan(margin=margin)
    options: dict[str, Any] = {} if max_seconds is None else {"max_seconds": max_seconds}
    with progress_bar() as bar:
        task = bar.add_task("compare", total=len(wanted))

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70] or "compare")

        return compare_ops(wanted, store, plan, progress=progress, **options), [
            *sides.notes,
            *missing_peers(chosen, (a, b)),
        ]


def _problems_of(model: str) -> list[Problem]:
    """What a model computes in decode and in a prefill step, each problem once."""
    from kbench.core import AUTO, Phase
    from kbench.model import load_descriptor, lower

    descriptor, _ = load_descriptor(model)
    found: dict[Problem, None] = {}
    for phase, tokens, context in ((Phase.DECODE, 1, 1024), (Phase.PREFILL, 64, 1024)):
        calls = lower(descriptor, {}, phase, tokens, context, resolve=lambda problem, device: AUTO)
        found |= dict.fromkeys(call.problem for call in calls if call.op != "transfer")
    return list(found)


def _revisions(
    a: str, b: str, suite: str, pattern: str, margin: float | None, max_seconds: float | None, store: Any
) -> list[Outcome]:  # fmt: skip
    from kbench.measure import Plan
    from kbench.suites import compare_revisions, expand, load_suite, select

    cells = expand(load_suite(suite or "compare"))
    if pattern:
        cells = select(cells, pattern)
    for name in (a, b):  # before minutes of building
        check_revision(name)
    sides = built_revision(a), built_revision(b)
    plan = Plan() if margin is None else Plan(margin=margin)
    options: dict[str, Any] = {} if max_seconds is None else {"max_seconds": max_seconds}
    with progress_bar() as bar:
        task = bar.add_task("compare", total=len(cells))

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70] or "compare")

        return compare_revisions(cells, *sides, store, plan, progress=progress, suite="compare", **options)


def _recorded(a: str, b: str, pattern: str, margin: float | None) -> tuple[list[VerdictRow], list[str]]:
    from kbench.measure import ASSUMED_BETWEEN, Plan
    from kbench.results import blocks_of, compare_recorded, deviation_between_runs, hosts_differ, one_host

    paths = Path(a), Path(b)
    records = [_matching(path, pattern) for path in paths]
    blocks = [blocks_of(side) for side in records]
    hosts = [one_host(side, name) for side, name in zip(blocks, (a, b), strict=True)]
    if hosts[0] != hosts[1]:
        raise UserError(
            f"the runs differ in host_id: {hosts[0]} and {hosts[1]}", where=f"{a} and {b}",
            accepted="two runs of one machine", todo="; ".join(hosts_differ(*paths)),
        )  # fmt: skip
    own = deviation_between_runs([*records[0], *records[1]])
    between = ASSUMED_BETWEEN if own is None else own
    known = "assumed" if own is None else "measured"
    note = f"blocks of other times are no pairs: {between:.1%} a run is allowed for ({known})"
    first, second = (path.name for path in paths)
    names = (first, second) if first != second else (f"A ({first})", f"B ({second})")
    rows = compare_recorded(
        blocks[0], blocks[1], Plan() if margin is None else Plan(margin=margin), names, between=between
    )
    return rows, [note]


def _matching(path: Path, pattern: str) -> list[Record]:
    """The records of ``path`` whose key ``pattern`` holds or globs; UserError for a pattern that matches none."""
    from kbench.results import read_records
    from kbench.suites import matches

    records = read_records(path)
    found = [record for record in records if matches(record.key, pattern)]
    if records and not found:
        examples = ", ".join(list(dict.fromkeys(record.key for record in records))[:3])
        raise UserError(f"filter {pattern!r} matches no case", where=str(path),
                        accepted=f"a part or glob of keys such as {examples}")  # fmt: skip
    return found


def _engines(
    sides: Sides, model: str | None, threads: int, margin: float | None, max_seconds: float | None,
    sizes: tuple[int, int], store: Any,
) -> list[Outcome]:  # fmt: skip
    from kbench.model import describe_gguf, open_gguf
    from kbench.rules import load_rules
    from kbench.suites import (
        Workload,
        compare_engines,
        engine_plan,
        engine_sides,
        revision_engines,
        rule_sides,
    )

    if model is None:
        raise UserError(f"{sides.word} need a model to run", where="--model", accepted="a .gguf file")
    path, workload = Path(model), Workload(*sizes)
    describe_gguf(open_gguf(path))  # a file that is not there, or none, is told before anything starts
    names = sides.a, sides.b
    if sides.kind == RULES:
        for file in names:
            load_rules(Path(file))
        pair = rule_sides((Path(sides.a), Path(sides.b)), path, threads, workload)
    elif sides.kind == ENGINES:
        pair = engine_sides(names, path, threads, workload)
    else:
        for name in names:  # before minutes of building
            check_revision(name)
        pair = revision_engines(built_revision(sides.a), built_revision(sides.b), path, threads, workload)
    options: dict[str, Any] = {} if max_seconds is None else {"max_seconds": max_seconds}
    with progress_bar() as bar:
        task = bar.add_task("loading", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70])

        return compare_engines(
            path, pair, store, threads=threads, workload=workload, plan=engine_plan(margin), progress=progress,
            **options,
        )  # fmt: skip
