"""Claims in a terminal: what is said, what was measured here, whether that agrees; then who says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kbench.results import Record

_STYLES = {"holds": "green", "not distinguishable": "dim"}


def print_claims(console: Console, records: Sequence[Record], shown: Callable[[str], str]) -> None:
    """Prints the records of ``run_claims``.

    ``shown`` makes text from files safe for a terminal.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("claim", min_width=38, overflow="fold")
    table.add_column("claimed", no_wrap=True)
    table.add_column("measured here", overflow="fold")
    table.add_column("verdict", min_width=18, overflow="fold")
    sources: dict[str, int] = {}
    modelled = False
    for record in records:
        said = record.extra["claim"]
        number = sources.setdefault(said["source"], len(sources) + 1)
        head = [Text(f"{shown(said['claim'])} [{number}]"), Text(shown(said["claimed"]))]
        if record.status != "ok":
            table.add_row(*head, Text("–"), Text(f"{record.status}: {shown(record.reason)}", style="yellow"))
            continue
        star = "*" if said["modelled"] else ""
        modelled = modelled or said["modelled"]
        verdict = said["verdict"]
        measured = Text(f"{said['measured']:.3g}{star}", style="bold")
        if said["low"] != said["high"]:
            measured.append(f" [{said['low']:.3g}, {said['high']:.3g}]", style="")
        measured.append(f"\n{shown(said['note'])}" if said["note"] else "", style="dim")
        table.add_row(*head, measured, Text(verdict, style=_STYLES.get(verdict, "yellow")))
    console.print(table)
    if modelled:
        console.print(Text("* computed, at least in part, for what is not here", style="dim"))
    for source, number in sources.items():
        console.print(Text(f"[{number}] {shown(source)}", style="dim"), soft_wrap=True)
