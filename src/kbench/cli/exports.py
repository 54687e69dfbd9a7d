"""`--format` and `-o`, which verbs share that judge cases: files for other tools, beside or in place of the table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kbench.core import UserError, did_you_mean, write_whole

if TYPE_CHECKING:
    from kbench.report import Sheet
    from kbench.results import VerdictRow

PAGE = "html"
# What a file's name says of its format.
_SUFFIXES = {".xml": "junit", ".md": "markdown", ".csv": "csv", ".html": PAGE, ".prom": "openmetrics"}
_NAMES = "markdown, junit, gha-smaller, gha-bigger, bencher, pytest-benchmark, openmetrics, csv, html"

FormatOption = Annotated[
    list[str] | None,
    typer.Option("--format", metavar="NAME", help=f"For other tools: {_NAMES}. Several, each with its -o."),
]
OutputOption = Annotated[
    list[Path] | None,
    typer.Option("--output", "-o", metavar="FILE", help="File for --format; alone, its suffix says which."),
]

# A format with the file that it goes to; None is stdout.
Planned = list[tuple[str, Path | None]]


def planned_exports(formats: Sequence[str] | None, outputs: Sequence[Path] | None, as_json: bool) -> Planned:
    """Checked before anything is measured.

    Raises:
        UserError: an unknown format, a file without one, a folder; two things for stdout.
    """
    from kbench.report import FORMATS

    names, files = list(formats or ()), list(outputs or ())
    if not names:
        names = [_by_suffix(path) for path in files]
    if len(files) != len(names) and not (len(names) == 1 and not files):
        raise UserError(
            f"{len(names)} formats and {len(files)} files", where="--format, -o", accepted="a file for each format"
        )
    known = (*FORMATS, PAGE)
    for name in names:
        if name not in known:
            raise UserError(f"unknown format {name!r}", where="--format", accepted=", ".join(known),
                            todo=did_you_mean(name, known))  # fmt: skip
    planned: Planned = []
    for name, path in zip(names, files or [Path("-")] * len(names), strict=True):
        if path.is_dir():
            raise UserError("a folder", where=f"-o {path}", accepted="a file")
        planned.append((name, None if str(path) == "-" else path))
    if sum(path is None for _, path in planned) + as_json > 1:
        what = f"--json and --format {names[0]}" if as_json else "more than one format"
        raise UserError(f"{what} on stdout", where="-o", accepted="a file for each format")
    return planned


def takes_stdout(planned: Planned) -> bool:
    """Whether a format is printed, in place of the table."""
    return any(path is None for _, path in planned)


def _by_suffix(path: Path) -> str:
    if path.suffix not in _SUFFIXES:
        raise UserError(f"{path.name}: which format?", where="-o", accepted=f"--format, or {', '.join(_SUFFIXES)}")
    return _SUFFIXES[path.suffix]


def make_sheet(verb: str, rows: Sequence[VerdictRow], *, change: bool, notes: Sequence[str], commit: str = "") -> Sheet:
    """The rows with this host, this time and ``commit``, by default this kbench's."""
    from kbench import __version__
    from kbench.measure import host
    from kbench.report import Sheet
    from kbench.results import current_commit

    return Sheet(
        verb, tuple(rows), change, host().host_id, commit or current_commit(),
        datetime.now(timezone.utc).isoformat(timespec="seconds"), tuple(notes), __version__,
    )  # fmt: skip


def export_verdicts(
    planned: Planned, verb: str, rows: Sequence[VerdictRow], *, change: bool, notes: Sequence[str], commit: str = ""
) -> None:
    """Every file that was asked for of ``rows``; see ``make_sheet`` and ``write_exports``."""
    if planned:
        from kbench.report import compare_page

        sheet = make_sheet(verb, rows, change=change, notes=notes, commit=commit)
        write_exports(planned, sheet, lambda: compare_page(sheet))


def write_exports(planned: Planned, sheet: Sheet, page: Callable[[], str]) -> None:
    """Writes every file, whole or not at all; ``page`` makes the HTML.

    Raises:
        UserError: a place cannot be written.
    """
    from kbench.report import FORMATS

    for name, path in planned:
        if path is not None and name == "markdown" and _is_step_summary(path):
            _append_summary(path, sheet)
            continue
        text = page() if name == PAGE else FORMATS[name](sheet)
        if path is None:
            print(text, end="")
        else:
            write_whole(path, text.encode("utf-8", "replace"))


def _is_step_summary(path: Path) -> bool:
    own = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return bool(own) and path.absolute() == Path(own).absolute()


def _append_summary(path: Path, sheet: Sheet) -> None:
    """Behind what the step wrote there before, within what GitHub takes of both."""
    from kbench.report import MAX_BYTES, step_summary

    try:
        taken = path.stat().st_size if path.exists() else 0
        text = step_summary(sheet, max(1000, MAX_BYTES - taken))
        with path.open("ab") as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path)) from None
