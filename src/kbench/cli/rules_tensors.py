"""`kbench rules explain --tensors`: the table of tensors and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbench.core import Phase, format_bytes

from .output import shown, stdout_console

if TYPE_CHECKING:
    from kbench.rules import TensorPlace, TensorRow


def print_tensors(rows: Sequence[TensorRow]) -> bool:
    """A line each; phases that agree everywhere share a column, which is what it returns."""
    from rich.table import Table
    from rich.text import Text

    alike = all(row.places[Phase.DECODE] == row.places[Phase.PREFILL] for row in rows)
    phases = (Phase.DECODE,) if alike else (Phase.DECODE, Phase.PREFILL)
    table = Table(box=None, pad_edge=False)
    for name in ("tensor", "type"):
        table.add_column(name, overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for phase in phases:
        table.add_column("decode, prefill" if alike else str(phase), overflow="fold")
    for row in rows:
        cells = [row.tensor.name, row.tensor.quant, f"{row.tensor.n_bytes:,}"]
        cells += [_places(row.places[phase]) for phase in phases]
        table.add_row(*(Text(shown(cell)) for cell in cells))  # names from the file are no markup
    stdout_console().print(table)
    return alike


def _places(places: Sequence[TensorPlace]) -> str:
    told = [f"{one.device} {one.implementation}" for one in places]
    if len(places) > 1:
        told = [f"{text} ({format_bytes(one.n_bytes)})" for text, one in zip(told, places, strict=True)]
    return ", ".join(told)
