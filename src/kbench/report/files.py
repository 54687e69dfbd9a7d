"""Reports as files: the page, and each chart as SVG or PNG."""

from __future__ import annotations

from pathlib import Path

from kbench.core import InvalidEnvironment, write_whole

from .block import charts_of
from .chart import Chart, Fields
from .page import html_page
from .section import sections

# Twice the size in CSS pixels: sharp on today's screens.
_PNG_SCALE = 2


def write_page(fields: Fields, path: Path) -> None:
    """Writes the page; the file is whole or as it was.

    Raises:
        UserError: the place cannot be written.
    """
    write_whole(path, html_page(fields).encode())


def write_charts(fields: Fields, folder: Path, *, png: bool = False) -> list[Path]:
    """Writes every chart of the page to ``folder`` as SVG, and as PNG if asked; the paths written.

    Raises:
        UserError: the place cannot be written.
        InvalidEnvironment: PNG without the package that draws it.
    """
    written = []
    for chart in charts_of(sections(fields)):
        path = folder / f"{chart.name}.svg"
        write_whole(path, chart.file().encode())
        written.append(path)
        if png:
            written.append(folder / f"{chart.name}.png")
            write_whole(written[-1], _pixels(chart))
    return written


def _pixels(chart: Chart) -> bytes:
    try:
        import resvg_py
    except ImportError:
        raise InvalidEnvironment(
            "PNG needs the package resvg-py",
            where="--png",
            todo="pip install resvg-py, or take the SVG files: pull requests show them too",
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=chart.file(), zoom=_PNG_SCALE))
