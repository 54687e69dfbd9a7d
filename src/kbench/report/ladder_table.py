"""An optimisation ladder as a terminal table: what each step brought here, beside what people claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kbench.results import Record

from .tables import milliseconds

_VERDICT_STYLES = {"holds": "green", "not distinguishable": "dim"}


def gain_text(ratio: float) -> str:
    """A ratio with three digits: ``0.95×``, ``1.23×``, ``12.3×``."""
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.3g}×"


def claim_text(claim: dict[str, Any]) -> str:
    """``≥ 3×``, ``about 5 %``; a gain under 2 is usually told in percent."""
    ratio = float(claim["ratio"])
    size = f"{ratio:g}×" if ratio >= 2 or ratio < 1 else f"{(ratio - 1) * 100:.3g} %"
    return f"{'≥' if claim['kind'] == 'at_least' else 'about'} {size}"


def _table(title: str, header: bool) -> Table:
    """The table of one problem. Widths are fixed, so that the tables of all problems line up."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=header)
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    table.add_column("step", min_width=24, overflow="fold")
    table.add_column("what changed", min_width=28, max_width=28, overflow="fold")
    for name, width in (("ms", 6), ("gain", 6), ("95 % interval", 13)):
        table.add_column(name, justify="right", width=width, no_wrap=True)
    table.add_column("against", min_width=16, max_width=16, overflow="fold")
    table.add_column("claim", min_width=14, overflow="fold")
    table.add_column("verdict", min_width=24, max_width=26, overflow="fold")
    return table


def print_ladder(console: Console, records: Sequence[Record], shown: Callable[[str], str]) -> None:
    """Prints the records of ``run_ladder``: a table for each problem in their order, a row a record; then the sources.

    ``shown`` makes text from files safe for a terminal.
    """
    sources: dict[str, int] = {}
    tables: list[Table] = []
    for index, record in enumerate(records):
        if index == 0 or record.key != records[index - 1].key:
            tables.append(_table(("\n" if tables else "") + shown(record.key), header=not tables))
        tables[-1].add_row(*_row(record, sources, shown))
    footer = [Text(f"[{number}] {shown(source)}", style="dim") for source, number in sources.items()]
    console.print(Group(*tables, Text(), *footer))


def _row(record: Record, sources: dict[str, int], shown: Callable[[str], str]) -> list[Text]:
    rung = record.extra["rung"]
    claim = rung.get("claim")
    said = ""
    if claim is not None:
        said = f"{claim_text(claim)} [{sources.setdefault(claim['source'], len(sources) + 1)}]"
    head = [Text(shown(record.implementation.removeprefix("ladder."))), Text(shown(rung.get("change", "")))]
    against = Text(shown(rung.get("against", "").removeprefix("ladder.")))
    if record.median is None:
        reason = Text(f"{record.status}: {shown(record.reason)}", style="yellow")
        return [*head, Text("–"), Text(), Text(), against, Text(said), reason]
    gain, interval = Text(), Text()
    if "gain" in rung:
        gain = Text(gain_text(rung["gain"]), style="bold")
        interval = Text(f"{rung['gain_low']:.3g}–{rung['gain_high']:.3g}")
    verdict = rung.get("verdict", "")
    return [
        *head, Text(milliseconds(record.median)), gain, interval, against, Text(said),
        Text(verdict, style=_VERDICT_STYLES.get(verdict, "yellow")),
    ]  # fmt: skip
