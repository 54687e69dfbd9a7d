"""The program ``kbench``: registers the verbs, turns errors into one message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys

import typer

from kbench import __version__
from kbench.core import KbenchError

from .output import fail

# In the order in which a newcomer meets them. Each is a file here with `register(app)`.
VERBS = (
    "doctor",
    "inspect",
    "synth",
    "tune",
    "report",
    "rules",
    "generate",
    "chat",
    "bench",
    "compare",
    "track",
    "results",
)


def _version(show: bool) -> None:
    if show:
        print(f"kbench {__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The application with every verb registered. Verbs import their heavy packages when they run."""
    app = typer.Typer(
        name="kbench",
        help="Measure, place and run mixture-of-experts language models on a CPU and a GPU that is too small.\n\n"
        "Example: [bold]kbench tune --vram 21G --dram 136G[/bold] plans DeepSeek-V2, and downloads nothing.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def _root(
        version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    ) -> None:
        pass

    for verb in VERBS:
        importlib.import_module(f".{verb}", __package__).register(app)
    return app


def main() -> None:
    """Entry point: exit code 0 done, 1 condition failed, 2 usage, 3 inconclusive, 4 environment, 5 broken."""
    try:
        build_app()()
    except KbenchError as error:
        sys.exit(fail(error))
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`kbench ... | head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
