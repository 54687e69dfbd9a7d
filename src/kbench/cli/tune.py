"""`kbench tune`: measure, place, write the rules, prove them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import UserError, parse_duration, parse_size

from .limits import check_threads
from .output import print_json, progress_bar, stdout_console
from .run_options import warn_of_context

if TYPE_CHECKING:
    from kbench.tuner import TuneRequest

_HELP = """Find the fastest placement of a model under memory budgets, and write it as a rule file.

Every operator is measured on this CPU; a GPU is priced from a profile and labelled modelled, here or not. With a
GGUF file the rules are run, and what was measured stands beside what was predicted. A second run measures nothing new.

Examples:

  [bold]kbench tune --vram 21G --dram 136G[/bold]            DeepSeek-V2-Chat, no download, no GPU needed

  [bold]kbench tune model.gguf --dram 4G[/bold]              a real model, run and proven on this CPU

  [bold]kbench tune model.gguf --search --time-budget 10m[/bold]   and threads and kernel parameters searched

  [bold]kbench tune model.gguf --kv auto --chunk auto[/bold]   and the cache's type and the tokens of a prefill step

  [bold]kbench tune --vram 21G --report tune.html[/bold]     and a page that shows why
"""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("tune", help=_HELP)
    def _tune(
        model: Annotated[
            str | None,
            typer.Argument(
                help="A .gguf file, a model's config.json, or an embedded model's name.", show_default=False
            ),
        ] = None,
        quant: Annotated[str | None, typer.Option(help="Quantization of an embedded model. Default: Q4_K_M.")] = None,
        vram: Annotated[
            str | None, typer.Option(help="GPU memory, e.g. 21G, or cuda:0=21G,cuda:1=10G; 0: no GPU.")
        ] = None,
        dram: Annotated[str | None, typer.Option(help="Main memory, e.g. 136G. Default: what is free.")] = None,
        gpu: Annotated[
            str, typer.Option(help="Profile that prices a GPU that is not here; several by commas.")
        ] = "rtx4090",
        context: Annotated[int, typer.Option("--context", "--ctx", help="Tokens that the cache must hold.")] = 4096,
        batch: Annotated[int, typer.Option(help="Sequences that are decoded at once.")] = 1,
        kv: Annotated[
            str,
            typer.Option(
                "--kv",
                "--kv-type",
                help="Type of the cache: f16, bf16, q8_0 or f32; several by commas, or auto: the fastest that fits.",
            ),
        ] = "f16",
        chunk: Annotated[
            str,
            typer.Option(help="Tokens of a prefill step; several by commas, or auto: the fastest, each measured."),
        ] = "256",
        objective: Annotated[
            str, typer.Option(help="What to be fast at: workload, decode, prefill, ttft or balanced.")
        ] = "workload",
        prompt_tokens: Annotated[
            int | None, typer.Option(help="Prompt of the workload to be fast at. Default: 1024.")
        ] = None,
        gen_tokens: Annotated[int | None, typer.Option(help="Tokens it generates. Default: 256.")] = None,
        threads: Annotated[int | None, typer.Option(help="CPU threads. Default: searched.")] = None,
        routing: Annotated[
            Path | None,
            typer.Option(help="Visits to experts, as kbench bench --routing counts them. Default: all alike."),
        ] = None,
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="Rule file. Default: kbench-rules/MODEL.yaml.")
        ] = None,
        prove: Annotated[bool, typer.Option(help="Run a real model under the rules.")] = True,
        host: Annotated[
            Path | None,
            typer.Option(help="Plan for the machine in this file, which kbench doctor --export wrote there."),
        ] = None,
        remeasure: Annotated[bool, typer.Option("--remeasure", help="Measure again what is known already.")] = False,
        search: Annotated[
            bool, typer.Option("--search", help="Also search threads and kernel parameters, problem by problem.")
        ] = False,
        time_budget: Annotated[
            str | None, typer.Option(help="For --search: when it ends at the latest, e.g. 10m. Default: by itself.")
        ] = None,
        storage: Annotated[
            str | None,
            typer.Option(
                help="For --search: a file, or a database's URL that machines of one kind share, e.g. "
                "postgresql://user@host/kbench. Default: a file beside the results."
            ),
        ] = None,
        page: Annotated[
            Path | None, typer.Option("--report", help="HTML page of what was found, as `kbench report` makes it.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        from kbench.model import load_descriptor
        from kbench.report import print_search, print_tune_report, write_page
        from kbench.results import Store, with_rules_of_thumb
        from kbench.tuner import (
            DEFAULT_MODEL,
            SearchRequest,
            TuneRequest,
            load_profile,
            parse_chunks,
            parse_kv,
            parse_vram,
            tune,
            tune_elsewhere,
        )

        for name in gpu.split(","):
            load_profile(name.strip())  # a typo is told, used or not
        warn_of_context(context, load_descriptor(model or DEFAULT_MODEL, quant)[0])
        if page is not None and page.is_dir():  # known now; measuring may take a minute
            raise UserError("a directory", where=str(page), accepted="--report FILE.html")
        for name, value in (("--time-budget", time_budget), ("--storage", storage)):
            if value is not None and not search:
                raise UserError("nothing is searched", where=name, todo="add --search")
        if search and host is not None:
            raise UserError("nothing is measured here for another machine", where="--search", todo="search there")
        if threads is not None and (host is None or threads < 1):  # another machine has CPUs of its own
            check_threads(threads, "--threads")
        request = TuneRequest(
            model=model or DEFAULT_MODEL,
            quant=quant,
            vram_bytes=None if vram is None else parse_vram(vram),
            dram_bytes=None if dram is None else parse_size(dram, "--dram"),
            gpu=gpu,
            context=context,
            batch=batch,
            objective=objective,
            kv_choices=parse_kv(kv),
            chunk_choices=parse_chunks(chunk),
            prompt_tokens=prompt_tokens,
            gen_tokens=gen_tokens,
            threads=threads,
            routing=routing,
            output=output,
            prove=prove,
            remeasure=remeasure,
            search=SearchRequest(storage, parse_duration(time_budget, "--time-budget") if time_budget else None)
            if search
            else None,
        )
        with progress_bar() as bar:
            task = bar.add_task("planning", total=1)

            def advance(what: str, done: int, total: int) -> None:
                bar.update(task, description=what, completed=done, total=total)

            if host is not None:
                report = tune_elsewhere(request, Store(), host)
            else:
                report = tune(request, Store(), advance, load_session=_load_session)
        if page is not None:
            write_page(report.fields, page)
        if as_json:
            print_json("tune", 1, with_rules_of_thumb(report.fields))
        else:
            print_tune_report(stdout_console(), report.fields, page)
            if search:
                print_search(stdout_console(), report.fields["search"])


def _load_session(path: Path, rules: Any, request: TuneRequest) -> Any:
    from kbench.engine import LoadOptions, load_model

    options = LoadOptions(context=request.context, kv=request.kv, threads=request.threads, chunk=request.chunk)
    return load_model(path, rules, options)
