"""`kbench results`: what the store holds, as tables; and making it smaller."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import UserError

from .output import plural, print_json, shown, stderr_console, stdout_console

if TYPE_CHECKING:
    from kbench.results import Index

_ROOT = Annotated[Path | None, typer.Option("--store", help="A folder of results. Default: where kbench keeps them.")]
_JSON = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
_REBUILD = Annotated[bool, typer.Option("--rebuild", help="Make the index anew first.")]
_FORMATS = ("table", "csv", "jsonl")


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    results = typer.Typer(
        name="results",
        no_args_is_help=True,
        help="List, query and prune stored measurements.\n\n"
        "Example: [bold]kbench results query op=linear --since 30d[/bold]",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    results.command(name="list")(list_files)
    results.command(name="query")(query)
    results.command(name="prune")(prune)
    app.add_typer(results)


def _index(root: Path | None, rebuild: bool = False) -> Index:
    from kbench.results import Index, default_root

    if root is not None and not root.is_dir():
        raise UserError("no such folder", where=f"--store {root}", accepted="a folder of records: HOST/*.jsonl")
    index = Index(root or default_root())
    if rebuild:
        index.rebuild()
    return index


def list_files(root: _ROOT = None, rebuild: _REBUILD = False, as_json: _JSON = False) -> None:
    """Files of the store: host, commit, suite, how many records, from when to when.

    Example: kbench results list
    """
    with _index(root, rebuild) as index:
        files = index.files()
        if as_json:
            fields = ("path", "host_id", "commit", "suite", "n_records", "n_ok", "first", "last")
            print_json("results.list", 1, {"root": str(index.root), "files": [
                {name: getattr(each, name) for name in fields} for each in files
            ]})  # fmt: skip
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for name in ("host", "commit", "suite", "records", "ok", "first", "last"):
            table.add_column(name, justify="right" if name in ("records", "ok") else "left")
        for each in files:
            cells = (
                each.host_id,
                each.commit[:8],
                each.suite,
                str(each.n_records),
                str(each.n_ok),
                each.first,
                each.last,
            )
            table.add_row(*(Text(shown(cell)) for cell in cells))
        stdout_console().print(table)
        stderr_console().print(f"{plural(len(files), 'file')} in {shown(str(index.root))}", markup=False)


def query(
    where: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COLUMN=TEXT]...", help="E.g. op=linear key='*tokens=1,*': holds or globs the text."),
    ] = None,
    since: Annotated[str, typer.Option(help="Not before: a date, or 30d, 12h.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 1000,
    form: Annotated[str, typer.Option("--format", help="table, csv or jsonl (the records as stored).")] = "table",
    root: _ROOT = None,
    rebuild: _REBUILD = False,
    as_json: _JSON = False,
) -> None:
    """Records that match, oldest first. In Python: kbench.results.frame(Store().read()) is a pandas table.

    Columns: key, op, implementation, host_id, commit, suite, status, source, unit, threads.

    Example: kbench results query op=linear status=ok --since 30d --format csv
    """
    from kbench.results import frame

    if form not in _FORMATS:
        raise UserError(form, where="--format", accepted=", ".join(_FORMATS))
    if as_json and form != _FORMATS[0]:
        raise UserError("beside --json", where=f"--format {form}", accepted="one of the two")
    like: dict[str, str] = {}
    for word in where or []:
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"{word!r}", accepted="COLUMN=TEXT, e.g. op=linear")
        like[name] = text
    with _index(root, rebuild) as index:
        records = list(index.records(index.find(like, since=_moment(since, "--since"), limit=limit)))
    if as_json:
        import json

        print_json("results.query", 1, {"records": [json.loads(record.to_json()) for record in records]})
    elif form == "jsonl":
        for record in records:
            print(record.to_json())
    elif form == "csv":
        frame(records).to_csv(sys.stdout, index=False)
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for name in ("created", "commit", "case", "implementation", "status", "median", "unit", "n"):
            table.add_column(name, justify="right" if name in ("median", "n") else "left", overflow="fold")
        for r in records:
            value = "" if r.median is None else f"{r.median:.4g}"
            cells = (
                r.created[:16],
                r.commit[:8],
                r.key,
                r.implementation,
                r.status,
                value,
                r.unit,
                str(len(r.samples)),
            )
            table.add_row(*(Text(shown(cell)) for cell in cells))
        stdout_console().print(table)
        stderr_console().print(plural(len(records), "record"), markup=False)


def prune(
    before: Annotated[str, typer.Option(help="Only what is older: a date, or 90d.")],
    keep: Annotated[
        int, typer.Option(min=0, help="Of each case, implementation and setting of it the newest so many stay.")
    ] = 1,
    suite: Annotated[str, typer.Option(help="Only files of suites that hold or glob this.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only said.")] = False,
    root: _ROOT = None,
    as_json: _JSON = False,
) -> None:
    """Take old records out of the store. Says what would go; --yes does it.

    Example: kbench results prune --before 180d --keep 5 --yes
    """
    from kbench.results import old_places
    from kbench.results import prune as take_out

    with _index(root) as index:
        places = old_places(index, before=_moment(before, "--before"), keep=keep, suite=suite)
        done = take_out(index.root, places) if yes else None
        store = index.root
    n = done.n_records if done else len(places)
    if as_json:
        fields: dict[str, Any] = {"root": str(store), "n_records": n, "done": done is not None}
        print_json("results.prune", 1, fields)
    elif done is not None:
        print(f"{plural(n, 'record')} and {plural(done.n_files, 'file')} went")
    else:
        print(f"{plural(n, 'record')} of {plural(len({path for path, _ in places}), 'file')} would go: --yes does it")


def _moment(text: str, option: str) -> str:
    """ISO 8601 in UTC of a date, or of so many days or hours ago; "" for ""."""
    if not text:
        return ""
    if ago := re.fullmatch(r"(\d{1,5})([dh])", text):
        span = timedelta(days=int(ago[1])) if ago[2] == "d" else timedelta(hours=int(ago[1]))
        return (datetime.now(timezone.utc) - span).isoformat(timespec="seconds")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(text, where=option, accepted="a date such as 2026-01-31, or 30d, 12h") from None
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")
