"""Where words go: results to stdout, progress and errors to stderr, plain when not a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kbench.core import KbenchError


def stdout_console() -> Console:
    """For results. Not a terminal: no colour, and wide enough that tables are not cut."""
    return Console() if sys.stdout.isatty() else Console(width=140, no_color=True, highlight=False)


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False)


def progress_bar() -> Progress:
    """A progress bar on stderr; silent when stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
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
    print(f"kbench: {error.message}", file=sys.stderr)
    return error.exit_code
