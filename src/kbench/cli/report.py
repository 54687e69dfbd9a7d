"""`kbench report`: the result of a tune as a page and as charts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kbench.core import UserError

from .output import print_json, shown, stdout_console

_HELP = """Show what a tune found as one HTML page that opens without a network, and as charts for a pull request.

RESULT is what `kbench tune` stored beside its rules (MODEL.tune.json) or printed with --json; the rule file does too.

Examples:

  [bold]kbench report kbench-rules/deepseek-v2-chat.tune.json -o report.html[/bold]

  [bold]kbench report kbench-rules/deepseek-v2-chat.yaml --charts charts/[/bold]     each chart as SVG
"""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("report", help=_HELP)
    def _report(
        result: Annotated[Path, typer.Argument(help="MODEL.tune.json, or the rule file it lies beside.")],
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="The page. Default: RESULT's name with .html.")
        ] = None,
        charts: Annotated[Path | None, typer.Option(help="Folder for the charts as SVG. Default: none.")] = None,
        png: Annotated[
            bool, typer.Option("--png", help="With --charts: PNG too (needs the package resvg-py).")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout: the files written.")] = False,
    ) -> None:
        from kbench.report import write_charts, write_page
        from kbench.results import read_tune_result

        if png and charts is None:
            raise UserError("--png without --charts", where="kbench report", accepted="--charts FOLDER --png")
        if charts is not None and charts.exists() and not charts.is_dir():
            raise UserError("a file", where=str(charts), accepted="--charts FOLDER")
        page = output or _beside(result)
        if page.is_dir():
            raise UserError("a directory", where=str(page), accepted="-o FILE.html")
        fields = read_tune_result(result)
        drawn = write_charts(fields, charts, png=png) if charts is not None else []
        write_page(fields, page)
        if as_json:
            print_json("report", 1, {"page": str(page), "charts": [str(path) for path in drawn]})
            return
        for path in (page, *drawn):
            stdout_console().print(shown(str(path)), markup=False, soft_wrap=True)


def _beside(result: Path) -> Path:
    """``model.html`` for ``model.tune.json`` and for ``model.yaml``, in the folder one works in."""
    return Path(f"{result.name.removesuffix('.json').removesuffix('.tune').removesuffix('.yaml')}.html")
