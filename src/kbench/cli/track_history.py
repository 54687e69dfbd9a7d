"""`kbench track history`: the steps of every case along a branch. Registered by `track`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

from kbench.core import ConditionFailed, UserError

from .exports import FormatOption, OutputOption, make_sheet, planned_exports, takes_stdout, write_exports
from .output import plural, print_json, shown, stderr_console, stdout_console


def history(
    branch: Annotated[
        str | None, typer.Option(metavar="REF", help="Whose commits give the order. Default: main, or master.")
    ] = None,
    repository: Annotated[Path, typer.Option("--repo", help="The repository that was measured.")] = Path(),
    results: Annotated[
        list[Path] | None, typer.Option("--results", help="Folder of records; several are read together.")
    ] = None,
    pattern: Annotated[str, typer.Option("--filter", metavar="KEY", help="Only cases that hold or glob this.")] = "",
    host_id: Annotated[str, typer.Option("--host", help="Only this host's. Default: every host, each by itself.")] = "",
    last: Annotated[int, typer.Option(min=1, help="Newest commits to look at.")] = 400,
    min_magnitude: Annotated[float, typer.Option(help="Least step that counts, in percent.")] = 3.0,
    marks: Annotated[
        Path | None, typer.Option(help="File of what is known about steps. Default: marks.yaml beside the records.")
    ] = None,
    fail: Annotated[
        bool, typer.Option("--fail-on-regression", help="Exit with 1 where a step for the worse is open.")
    ] = False,
    formats: FormatOption = None,
    outputs: OutputOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Find the commits at which cases became slower or faster and stayed so, in what kbench track record stored.

    A step counts when hardly any shuffling of the same values shows one as clear, after what neighbouring runs have in
    common is taken out, and when it is large enough. A regression is a step for the worse that no later commit made
    good and nobody marked (kbench track mark).

    Example: kbench track history -o history.html
    """
    from kbench import __version__
    from kbench.report import history_page, history_rows, print_history
    from kbench.results import (
        MARKS_NAME,
        Store,
        branch_commits,
        default_root,
        histories,
        judged_histories,
        load_marks,
        usual_branch,
    )
    from kbench.suites import matches

    planned = planned_exports(formats, outputs, as_json)
    if not 0 < min_magnitude < 100:
        raise UserError(f"{min_magnitude:g}", where="--min-magnitude", accepted="percent, above 0 and below 100")
    roots = results or [default_root()]
    for root in roots:
        if results and not root.is_dir():
            raise UserError("no such folder", where=str(root), accepted="a folder of records: HOST/*.jsonl")
    if not repository.is_dir():
        raise UserError("no such folder", where=f"--repo {repository}", accepted="a checkout of what was measured")
    if marks is not None and not marks.is_file():
        raise UserError("no such file", where=f"--marks {marks}", accepted="what kbench track mark writes")
    name = branch or usual_branch(repository)
    commits = branch_commits(repository, name) if name else None
    if branch and commits is None:
        raise UserError("not in a git repository", where=f"--branch {branch}", todo="--repo FOLDER, a checkout")
    commits = commits[-last:] if commits else None
    records = [record for root in roots for record in Store(root).read(host_id or None) if matches(record.key, pattern)]
    known = load_marks(marks) if marks else [mark for root in roots for mark in load_marks(root / MARKS_NAME)]
    found = histories(records, commits)
    if not found.series:
        raise UserError(
            "no records" if not records else "no records of commits that could be looked at",
            where=", ".join(map(str, roots)), accepted="records of a branch's commits",
            todo="kbench track record, or kbench track import FILE",
        )  # fmt: skip
    fields: dict[str, Any] = {
        "branch": name if found.by_commit else "",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "kbench_version": __version__,
        **judged_histories(found, known, commits, min_magnitude=min_magnitude / 100, floors=_floors(records)),
    }
    rows = history_rows(fields)
    if as_json:
        print_json("track.history", 1, fields)
    elif not takes_stdout(planned):
        print_history(stdout_console(), fields, shown)
        for note in fields["notes"]:
            stderr_console().print(shown(note), markup=False)
    commit = commits[-1] if commits and found.by_commit else ""
    sheet = make_sheet("kbench track history", rows, change=True, notes=fields["notes"], commit=commit)
    write_exports(planned, sheet, lambda: history_page(fields))
    slower = [row for row in rows if row.verdict == "REGRESSED"]
    if fail and slower:
        raise ConditionFailed(
            f"{plural(len(slower), 'case')} slower: {slower[0].reason}", where=slower[0].case,
            todo="kbench track mark, if it is known",
        )  # fmt: skip


def _floors(records: list[Any]) -> dict[str, Any]:
    """Each host's own noise, as `kbench track aa` found it."""
    from kbench.results import noise_floor

    by_host: dict[str, list[Any]] = {}
    for record in records:
        by_host.setdefault(record.host_id, []).append(record)
    return {host_id: noise_floor(members) for host_id, members in by_host.items()}
