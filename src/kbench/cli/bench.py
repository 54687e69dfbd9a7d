"""`kbench bench`: measures what a suite lists, or a model's perplexity, and prints it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import UserError

from .bench_claims import check_claims
from .bench_engine import engine_row, measure_engine
from .bench_ladder import climb
from .bench_ops import op_row, print_ops
from .bench_output import print_keys, progress_of, raise_broken
from .bench_perplexity import measure_perplexity
from .bench_routing import bench_routing
from .limits import usable_threads
from .options_taken import refuse_untaken
from .output import print_json, shown, stderr_console, stdout_console

if TYPE_CHECKING:
    from kbench.results import Record
    from kbench.suites import Cell, EngineCase, Suite

_HELP = """Measure operations, whole models, claims or perplexity: what a suite lists.

Operations (smoke, ops-cpu, moe, mla, ops-gpu): every case is checked against its definition, then timed with cold
caches. Bytes are those of the weights, caches and activations that a call must touch; rates are those over the median.

Models (engine, with --model): each case is a process of its own: load, first run, time to first token, time between
tokens with percentiles, peak memory, where everything ran. What runs elsewhere than asked is an error.

A ladder (matmul-ladder: what each optimisation of a matrix product brings on this machine) is measured in pairs; claims
(seed-claims) are printed beside what was measured here.

Raw samples go to the result store. What failed is a record too, and the run goes on; what has a record is not measured
again without --again.

Examples:

  [bold]kbench bench ops-cpu --filter 'linear(quant=Q4_K*tokens=1,*'[/bold]

  [bold]kbench bench engine --model smollm2.gguf --tag quick[/bold]

  [bold]kbench bench seed-claims --model smollm2.gguf[/bold]

  [bold]kbench bench --routing moe.gguf --text story.txt[/bold]        for kbench tune --routing

  [bold]kbench bench --perplexity m.Q4_0.gguf --against m.F16.gguf --text story.txt[/bold]
"""


_SUITE = frozenset({"SUITE", "--filter", "--list", "--json"})
_OPERATIONS, _MODELS, _LADDER = "a suite of operations", "a suite of models", "a ladder"
_CLAIMS, _PERPLEXITY, _ROUTING = "a suite of claims", "--perplexity", "--routing"
# What each takes; ladders and claims are measured anew every time.
_TAKEN = {
    _OPERATIONS: _SUITE | {"--tag", "--again"},
    _MODELS: _SUITE | {"--tag", "--again", "--model", "--rules"},
    _LADDER: _SUITE,
    _CLAIMS: _SUITE | {"--model", "--with"},
    _PERPLEXITY: {"--perplexity", "--text", "--against", "--window", "--threads", "--json"},
    _ROUTING: {"--routing", "--text", "--tokens", "--threads", "--output", "--json"},
}


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("bench", help=_HELP)
    def _bench(
        context: typer.Context,
        suite: Annotated[
            str, typer.Argument(help="A suite's name or YAML file, or a .gguf file (engine on that model).")
        ] = "smoke",
        model: Annotated[str, typer.Option(help="A .gguf file, for cases that run one.")] = "",
        rules: Annotated[str, typer.Option(help="Rules that place its modules.")] = "",
        pattern: Annotated[
            str, typer.Option("--filter", metavar="KEY", help="Only cases whose key holds or globs this.")
        ] = "",
        tags: Annotated[list[str] | None, typer.Option("--tag", help="Only entries with this tag; repeatable.")] = None,
        again: Annotated[bool, typer.Option("--again", help="Measure again what has a fresh record.")] = False,
        dry_run: Annotated[bool, typer.Option("--list", help="Print the case keys and measure nothing.")] = False,
        perplexity: Annotated[
            str, typer.Option(metavar="MODEL", help="In place of a suite: perplexity of this .gguf file.")
        ] = "",
        text: Annotated[
            Path | None,
            typer.Option(help="The text. Default: English that comes with kbench; random tokens of --routing."),
        ] = None,
        against: Annotated[str, typer.Option(help="The full-precision .gguf file to tell KL and ratio against.")] = "",
        window: Annotated[int | None, typer.Option(min=1, help="Tokens of a window of the text. Default: 512.")] = None,
        threads: Annotated[
            int | None,
            typer.Option(
                min=1, callback=usable_threads, help="Of --perplexity and --routing. Default: physical cores."
            ),
        ] = None,
        given: Annotated[
            list[str] | None,
            typer.Option("--with", metavar="QUANT=FILE", help="For claims: the model in that type; repeatable."),
        ] = None,
        routing: Annotated[
            str, typer.Option(metavar="MODEL", help="In place of a suite: count which experts this .gguf file visits.")
        ] = "",
        tokens: Annotated[int | None, typer.Option(help="Of --routing: tokens at most. Default: 4096.")] = None,
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="Of --routing: where counts go. Default: the store.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        from kbench.suites import load_suite

        if routing:
            refuse_untaken(context, _ROUTING, _TAKEN)
            bench_routing(routing, text, tokens, threads, output, as_json)
            return
        if perplexity:
            refuse_untaken(context, _PERPLEXITY, _TAKEN)
            measure_perplexity(perplexity, text, against, window, threads, as_json)
            return
        if suite.lower().endswith(".gguf"):
            if model:
                raise UserError(f"{suite} beside it", where="--model", accepted="one model")
            suite, model = "engine", suite
        loaded = load_suite(suite)
        refuse_untaken(context, _kind(loaded), _TAKEN)
        loaded = loaded.tagged(tags or ())
        if loaded.ladder:
            climb(loaded, pattern, dry_run, as_json)
        elif loaded.claims:
            check_claims(loaded, pattern, model, given or (), dry_run, as_json)
        else:
            cells, cases = _chosen(loaded, pattern, model, rules)
            if dry_run:
                print_keys(_about(loaded), (*map(str, cells), *map(str, cases)), as_json)
            else:
                _measure(loaded, cells, cases, not again, as_json)


def _kind(loaded: Suite) -> str:
    """What a suite lists, as ``_TAKEN`` has it."""
    if loaded.ladder:
        return _LADDER
    if loaded.claims:
        return _CLAIMS
    return _MODELS if loaded.engine else _OPERATIONS


def _about(loaded: Suite) -> dict[str, Any]:
    from kbench.measure import host

    return {"suite": loaded.name, "host_id": host().host_id}


def _chosen(loaded: Suite, pattern: str, model: str, rules: str) -> tuple[tuple[Cell, ...], tuple[EngineCase, ...]]:
    """The cells and engine cases of a suite that ``pattern`` picks."""
    from kbench.model import load_descriptor
    from kbench.rules import load_rules
    from kbench.suites import engine_cases, expand, select_any

    cells, cases = expand(loaded), engine_cases(loaded, model, rules)
    if not cells and not cases:
        raise UserError("nothing is left of it", where=loaded.name, accepted="a case that exclude does not match")
    # What the command line names is looked at before anything is measured; what a suite names may be missing.
    if cases and model:
        load_descriptor(model)
    if cases and rules:
        load_rules(Path(rules))
    return select_any(cells, cases, pattern) if pattern else (cells, cases)


def _measure(loaded: Suite, cells: tuple[Cell, ...], cases: tuple[EngineCase, ...], fresh: bool, as_json: bool) -> None:
    from kbench.report import print_engine_cases
    from kbench.results import Store
    from kbench.suites import run_cells

    store = Store()
    records: list[Record] = []
    if cells:
        with progress_of(loaded.name, len(cells)) as progress:
            records = run_cells(cells, store, progress=progress, fresh=fresh, suite=loaded.name)
    engine = measure_engine(cases, store, fresh, loaded.name) if cases else []
    rows = [op_row(record) for record in records]
    about = _about(loaded)
    if as_json:
        print_json("bench", 1, {**about, "cases": rows, "engine": [engine_row(record) for record in engine]})
    else:
        if rows:
            print_ops(rows)
        print_engine_cases(stdout_console(), engine, shown)
        n = len(rows) + len(cases)
        stderr_console().print(f"{n} cases on host {about['host_id']}; records in {store.root}")
    raise_broken([*records, *engine], "cases")
