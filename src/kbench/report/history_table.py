"""Histories in a terminal, and as the rows that output formats are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kbench.results import VerdictRow

from .chart import Fields
from .history_chart import state_words
from .quantity import change, quantity

_STYLES = {"REGRESSED": "red", "IMPROVED": "green", "SAME": "dim", "INCONCLUSIVE": "yellow"}
# Steps of one case in a terminal; the page has all.
_MOST_STEPS = 4


def print_history(console: Console, fields: Fields, shown: Callable[[str], str]) -> None:
    """A line a case, regressions first, with its latest steps. ``shown`` makes text safe for a terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("case", overflow="fold", min_width=34)
    table.add_column("now", justify="right", no_wrap=True)
    table.add_column("commits", justify="right", no_wrap=True)
    table.add_column("noise", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("steps, newest first", overflow="fold")
    for case in fields["cases"]:
        settings = f" ({case['settings']})" if case["settings"] else ""
        table.add_row(
            Text(shown(f"{case['case']} {case['implementation']}{settings}")),
            Text(shown(quantity(case["now"], case["unit"]))),
            Text(str(len(case["points"]))),
            Text(f"{case['noise'] * 100:.2g} %"),
            Text(_verdict(case), style=_STYLES[case["verdict"]]),
            Text(shown(_steps(case["steps"]) or case["reason"])),
        )
    console.print(table)


def _verdict(case: Fields) -> str:
    return f"{case['verdict']} {change(case['left'])}" if case["verdict"] == "REGRESSED" else str(case["verdict"])


def _steps(steps: Sequence[Fields]) -> str:
    newest = steps[::-1][:_MOST_STEPS]
    words = [f"{change(step['cost'])} at {step['commit'][:9]} ({state_words(step['state'])})" for step in newest]
    more = len(steps) - len(newest)
    return "; ".join([*words, *([f"{more} before"] if more else [])])


def history_rows(fields: Fields) -> list[VerdictRow]:
    """A row a case: A is the level before the largest open step (or the first level), B the level now.

    The ratio of a regression is what is left of it; others have that of the two levels. A history has no interval: its
    verdict rests on permutations.
    """
    return [_row(case) for case in fields["cases"]]


def _row(case: Fields) -> VerdictRow:
    open_steps = [step for step in case["steps"] if step["state"] == "open"]
    worst = max(open_steps, key=lambda step: step["left"], default=None)
    before = worst["before"] if worst is not None else case["first"]
    seconds, tokens = _seconds(case, case["now"])
    a_seconds, _ = _seconds(case, before)
    moved = case["now"] / before if case["direction"] == "lower" else before / case["now"]
    return VerdictRow(
        case["case"],
        f"before {worst['commit'][:12]}" if worst is not None else "the first commits",
        "now",
        reason=_reason(case, worst),
        implementation=" ".join(filter(None, [case["implementation"], case["settings"]])),
        verdict=case["verdict"],
        ratio=case["left"] if worst is not None else moved,
        a_seconds=a_seconds,
        b_seconds=seconds,
        tokens=tokens,
        p=worst["p"] if worst is not None else None,
        margin=case["min_magnitude"],
    )


def _reason(case: Fields, worst: Fields | None) -> str:
    if worst is None:
        return str(case["reason"])
    return f"{change(worst['cost'])} since {worst['commit'][:12]}, measured {worst['created'][:10]}"


def _seconds(case: Fields, value: float) -> tuple[float | None, int | None]:
    """Seconds, and of how many tokens; nothing for units that are no time."""
    if case["unit"] == "seconds":
        return value, None
    if case["unit"] == "tokens/s":
        return 1 / value, 1
    return None, None
