"""`kbench bench`: measures the cells of a suite and prints what they reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from .output import print_json, progress_bar, shown, stderr_console, stdout_console

if TYPE_CHECKING:
    from kbench.results import Record
    from kbench.suites import Suite


def _row(record: Record) -> dict[str, Any]:
    """The numbers of one record: times in seconds, rates per second."""
    from kbench.core import work
    from kbench.measure import quartiles

    done = work(record.core_problem())
    row: dict[str, Any] = {
        "case": record.key,
        "implementation": record.implementation,
        "block": record.extra.get("block", {}),
        "status": record.status,
        "reason": record.reason,
        "median_seconds": record.median,
        "q1_seconds": None,
        "q3_seconds": None,
        "n_samples": len(record.samples),
        "bytes_touched": done.bytes_touched,
        "flops": done.flops,
        "bytes_per_s": None,
        "flops_per_s": None,
        "ai_touched": done.ai_touched,
        "ai_resident": done.ai_resident,
        "subset": record.extra.get("subset", ""),
        "cold": record.extra.get("cold"),
        "prepare_seconds": record.extra.get("prepare_seconds"),
        "prepared_bytes": record.extra.get("prepared_bytes"),
    }
    if record.median:
        row["q1_seconds"], _, row["q3_seconds"] = quartiles(record.samples)
        row["bytes_per_s"], row["flops_per_s"] = done.bytes_touched / record.median, done.flops / record.median
    return row


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("case", overflow="fold")
    table.add_column("implementation")
    for name in ("median µs", "quartiles µs", "GB/s", "GFLOP/s", "FLOP/byte"):
        table.add_column(name, justify="right")
    for row in rows:
        case = row["case"] + (f" [{row['subset']}]" if row["subset"] else "")
        chosen = " ".join((row["implementation"], *(f"{name}={value}" for name, value in row["block"].items())))
        head = (Text(shown(case)), Text(shown(chosen)))  # a suite's words are no markup
        if row["median_seconds"] is None:
            table.add_row(*head, row["status"], Text(shown(row["reason"][:60])))
            continue
        quartiles = f"{row['q1_seconds'] * 1e6:.1f}–{row['q3_seconds'] * 1e6:.1f}"
        rates = (f"{row[name] / 1e9:.1f}" for name in ("bytes_per_s", "flops_per_s"))
        table.add_row(*head, f"{row['median_seconds'] * 1e6:.1f}", quartiles, *rates, f"{row['ai_touched']:.2f}")
    stdout_console().print(table)


def _climb(loaded: Suite, pattern: str, dry_run: bool, as_json: bool) -> None:
    """Measures a suite that is a ladder and prints it."""
    from kbench.core import CheckBroken
    from kbench.measure import Guard, host
    from kbench.report import print_ladder
    from kbench.results import Store
    from kbench.suites import run_ladder, select_rungs, threads_of

    rungs = select_rungs(loaded.ladder, pattern) if pattern else loaded.ladder
    about = {"suite": loaded.name, "host_id": host().host_id}
    if dry_run:
        keys = [str(rung) for rung in rungs]
        print_json("bench", 1, {**about, "cells": keys}) if as_json else print(*map(shown, keys), sep="\n")
        return
    store, guard = Store(), Guard()
    with progress_bar() as bar:
        task = bar.add_task(loaded.name, total=len(rungs))

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, description=what[:70] or loaded.name)

        records = run_ladder(rungs, threads_of(loaded), store, progress=progress, suite=loaded.name)
    warnings = guard.warnings()
    if as_json:
        print_json("bench", 1, {**about, "rungs": [_rung(record) for record in records], "warnings": list(warnings)})
    else:
        print_ladder(stdout_console(), records, shown)
        for warning in warnings:
            stderr_console().print(f"warning: {shown(warning)}", markup=False)
        stderr_console().print(f"{len(records)} rungs on host {host().host_id}; records in {store.root}")
    broken = [record for record in records if record.status in ("wrong", "crashed")]
    if broken:
        first = broken[0]
        raise CheckBroken(
            f"{len(broken)} of {len(records)} rungs {first.status}: {first.reason}", where=first.implementation
        )


def _rung(record: Record) -> dict[str, Any]:
    """One rung for programs; raw samples are in the store."""
    rung = {k: v for k, v in record.extra["rung"].items() if k not in ("ratios", "against_samples")}
    return {
        "case": record.key,
        "implementation": record.implementation,
        "status": record.status,
        "reason": record.reason,
        "median_seconds": record.median,
        "n_pairs": len(record.extra["rung"].get("ratios", ())),
        **rung,
    }


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command(
        epilog="Examples: kbench bench ops-cpu --filter 'linear(quant=Q4_K*tokens=1,*'  ·  kbench bench matmul-ladder"
    )
    def bench(
        suite: str = typer.Argument("smoke", help="A suite's name (smoke, ops-cpu, matmul-ladder) or a YAML file."),
        pattern: str = typer.Option("", "--filter", metavar="KEY", help="Only cases whose key holds or globs this."),
        again: bool = typer.Option(False, "--again", help="Measure again what has a fresh record."),
        dry_run: bool = typer.Option(False, "--list", help="Print the case keys and measure nothing."),
        as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    ) -> None:
        """Measure operations: every case is checked against its definition, then timed with cold caches.

        Bytes are those of the weights, caches and activations that a call must touch; rates are those over the median.
        Raw samples go to the result store.

        A suite that is a ladder (matmul-ladder: what each optimisation of a matrix product brings on this machine,
        beside what people claim) is measured in pairs: each step in alternation with an earlier one.
        """
        from kbench.core import CheckBroken
        from kbench.measure import host
        from kbench.results import Store
        from kbench.suites import expand, load_suite, run_cells, select

        loaded = load_suite(suite)
        if loaded.ladder:
            _climb(loaded, pattern, dry_run, as_json)
            return
        cells = expand(loaded)
        if pattern:
            cells = select(cells, pattern)
        if dry_run:
            keys = [str(cell) for cell in cells]
            if as_json:
                print_json("bench", 1, {"suite": loaded.name, "host_id": host().host_id, "cells": keys})
            else:
                print(*map(shown, keys), sep="\n")
            return
        store = Store()
        with progress_bar() as bar:
            task = bar.add_task(loaded.name, total=len(cells))

            def progress(done: int, total: int, what: str) -> None:
                bar.update(task, completed=done, description=what[:70] or loaded.name)

            records = run_cells(cells, store, progress=progress, fresh=not again, suite=loaded.name)
        rows = [_row(record) for record in records]
        if as_json:
            print_json("bench", 1, {"suite": loaded.name, "host_id": host().host_id, "cases": rows})
        else:
            _print_table(rows)
            stderr_console().print(f"{len(rows)} cases on host {host().host_id}; records in {store.root}")
        broken = [row for row in rows if row["status"] in ("wrong", "crashed")]
        if broken:
            first = broken[0]
            raise CheckBroken(
                f"{len(broken)} of {len(rows)} cases {first['status']}: {first['reason']}",
                where=f"{first['case']} {first['implementation']}",
            )
