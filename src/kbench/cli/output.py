"""Where words go: results to stdout, progress and errors to stderr, plain when not a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kbench.core import KbenchError
from kbench.core import shown as shown

# A message beyond this is a file's doing: somebody's name of a megabyte.
_MAX_LINE_CHARS = 2000


def shown_lines(text: str) -> str:
    """``shown``, with lines cut that nobody would read."""
    lines = (line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}..." for line in text.split("\n"))
    return "\n".join(map(shown, lines))


def plural(count: int, noun: str) -> str:
    """``1 rule``, ``2 rules``; ``info`` has none."""
    return f"{count} {noun}{'' if count == 1 or noun == 'info' else 's'}"


def stdout_console() -> Console:
    """For results. Not a terminal: no colour, and wide enough that tables are not cut."""
    if sys.stdout.isatty():
        return Console()
    file = cast("IO[str]", _Trimmed(sys.stdout))
    # What CI systems set for colours in their logs (FORCE_COLOR) would else make bold and dim escapes of a pipe's text.
    return Console(width=140, no_color=True, highlight=False, force_terminal=False, file=file)


class _Trimmed:
    """A file whose lines end where their text does: tables fill their cells up with blanks."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._blanks = file, ""

    def write(self, text: str) -> int:
        lines = (self._blanks + text).split("\n")
        last = lines[-1].rstrip(" ")
        self._blanks = lines[-1][len(last) :]  # until it is known whether something follows them
        self._file.write("\n".join([*(line.rstrip(" ") for line in lines[:-1]), last]))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False)


def progress_bar() -> Progress:
    """A progress bar on stderr; silent when stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=stderr_console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def print_json(verb: str, version: int, fields: Mapping[str, Any]) -> None:
    """One JSON object on stdout, its first key the schema ``kbench.<verb>/<version>``."""
    print(json.dumps({"schema": f"kbench.{verb}/{version}", **fields}, indent=2))


def fail(error: KbenchError) -> int:
    """Prints the error and returns its exit code."""
    print(f"kbench: {shown_lines(error.message)}", file=sys.stderr)
    return error.exit_code
