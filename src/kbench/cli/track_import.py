"""`kbench track import` and `kbench track mark`: what a history takes from elsewhere. Registered by `track`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from kbench.core import UserError, did_you_mean

from .output import plural, print_json, shown

if TYPE_CHECKING:
    from kbench.measure import MarkKind

THIS_HOST = "this"


def import_results(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="JSON of pytest-benchmark or llama-bench.")],
    host_id: Annotated[
        str | None,
        typer.Option("--host", help=f"Whose they are: a host id, or '{THIS_HOST}'. Default: what the file says."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Store other tools' results, for kbench track history: pytest --benchmark-json, llama-bench -o json or jsonl.

    What is stored already is not stored again. A file's machine becomes a host of its own unless --host says whose it
    is.

    Example: kbench track import benchmark.json
    """
    from kbench.measure import host
    from kbench.results import Store, import_records, read_foreign

    whose = host().host_id if host_id == THIS_HOST else host_id
    read = [(path, read_foreign(path, whose)) for path in files]  # all of them, or none
    store = Store()
    fields: list[dict[str, Any]] = []
    for path, records in read:
        n_new = import_records(records, store)
        hosts = sorted({record.host_id for record in records})
        fields.append({"file": str(path), "n_records": len(records), "n_new": n_new, "hosts": hosts})
    if as_json:
        print_json("track.import", 1, {"files": fields, "results": str(store.root)})
        return
    for one in fields:
        known = one["n_records"] - one["n_new"]
        more = f", {known} were there already" if known else ""
        whose_hosts = ", ".join(one["hosts"])
        print(shown(f"{one['file']}: {plural(one['n_new'], 'record')} of host {whose_hosts}{more}"))


def mark(
    case: Annotated[str, typer.Argument(help="A case's key, or a glob of keys such as 'linear(quant=Q4_K*'.")],
    commit: Annotated[str, typer.Argument(help="The commit, at least seven digits, at which the step is.")],
    kind: Annotated[str, typer.Argument(help="accepted, environment or fixed.")],
    why: Annotated[str, typer.Option(help="Shown beside the step.")] = "",
    host_id: Annotated[str, typer.Option("--host", help="Only on this host. Default: on every one.")] = "",
    file: Annotated[
        Path | None, typer.Option("--marks", help="The file. Default: marks.yaml beside the records.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say what is known about a step of a history: accepted (wanted), environment (the machine changed), fixed.

    Marks are lines of a YAML file, to be edited, reviewed and committed like any other.

    Example: kbench track mark 'linear(quant=Q4_K*' 3f2a91c accepted --why 'checks its bounds now'
    """
    from kbench.results import MARK_KINDS, MARKS_NAME, Mark, add_mark, default_root

    if kind not in MARK_KINDS:
        raise UserError(f"unknown {kind!r}", where="kbench track mark", accepted=", ".join(MARK_KINDS),
                        todo=did_you_mean(kind, MARK_KINDS))  # fmt: skip
    path = file or default_root() / MARKS_NAME
    add_mark(path, Mark(case, commit, cast("MarkKind", kind), why, host_id))
    if as_json:
        print_json("track.mark", 1, {"marks": str(path), "case": case, "commit": commit, "mark": kind})
    else:
        print(shown(f"{path}: {kind} at {commit}"))
