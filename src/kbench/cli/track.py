"""`kbench track`: watches a repository's speed: its history, a change, the machine's own noise."""

from __future__ import annotations

import typer

from .track_aa import aa
from .track_check import check
from .track_history import history
from .track_import import import_results, mark
from .track_record import record


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    track = typer.Typer(
        name="track",
        no_args_is_help=True,
        help="Keep watch over speed: record it by commit, check a change, find steps in history, know the noise.\n\n"
        "Example: [bold]kbench track check --baseline origin/main[/bold]",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    track.command(name="record")(record)
    track.command(name="check")(check)
    track.command(name="history")(history)
    track.command(name="mark")(mark)
    track.command(name="import")(import_results)
    track.command(name="aa")(aa)
    app.add_typer(track)
