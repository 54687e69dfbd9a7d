"""Tables of a tune's report for the terminal beside the operators': why, what if, rules of thumb."""

from __future__ import annotations

from rich.table import Table

from .chart import Fields
from .choices import FORM_HEADER, form_rows
from .gains import gain_lines, thumb_rows, thumb_warning
from .tables import table
from .vram_chart import own_row, what_if_rows
from .why import why_rows

__all__ = ["form_table", "gain_lines", "thumb_table", "thumb_warning", "what_if_table", "why_table"]


def why_table(fields: Fields) -> Table:
    """Each kind of module, where it runs, and the reason."""
    made = table("Why", ("module", "left"), ("on", "left"), ("because", "left"))
    made.columns[-1].no_wrap, made.columns[-1].overflow = False, "fold"
    for name, where, reason, *_ in why_rows(fields)[1]:
        made.add_row(name, where, reason)
    return made


def form_table(fields: Fields) -> Table | None:
    """Cache types and prefill steps that were planned; None where there was no choice."""
    rows = form_rows(fields)
    if not rows:
        return None
    cache, chunk, seconds, chosen = FORM_HEADER
    made = table(
        "Cache and prefill step", (cache, "left"), (chunk, "right"), (seconds, "right"), (chosen, "left")
    )  # fmt: skip
    for row in rows:
        made.add_row(*row, style="bold" if row[-1] else "")
    return made


def what_if_table(fields: Fields) -> Table | None:
    """Cards with common memory sizes beside this plan; None for a tune without a GPU."""
    rows = what_if_rows(fields)
    if not rows:
        return None
    made = table(
        "What if the GPU had",
        ("memory", "left"), ("of it used", "right"), ("decode t/s", "right"), ("prefill t/s", "right"),
        ("decode against this plan", "right"),
    )  # fmt: skip
    own = own_row(fields)
    if own is not None:
        made.add_row(*own, style="bold")
    for row in rows:
        made.add_row(*row)
    return made


def thumb_table(fields: Fields) -> Table | None:
    """What rules of thumb would take; None where there is none to speak of."""
    rows = thumb_rows(fields)
    if not rows:
        return None
    made = table(
        "Rules of thumb, beside this plan",
        ("rule", "left"), ("it says", "left"), ("time of", "left"), ("longer", "right"),
    )  # fmt: skip
    made.columns[1].no_wrap, made.columns[1].overflow = False, "fold"
    for row in rows:
        made.add_row(*row)
    return made
