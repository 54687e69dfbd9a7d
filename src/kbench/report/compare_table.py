"""Comparisons as a terminal table: a row a case, the summary below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .ladder_table import gain_text
from .tables import milliseconds, rate

# Kinds of sides of which B took A's place; others are two things side by side.
_CHANGES = ("rules", "revisions", "recorded", "track")
_STYLES = {"IMPROVED": "green", "REGRESSED": "red", "SAME": "dim", "INCONCLUSIVE": "yellow"}


def verdict_text(verdict: str, a: str, b: str, change: bool) -> str:
    """Of a change (``b`` took ``a``'s place) the verdict's own word; of two different things, which one is faster."""
    if change:
        return verdict
    return {"REGRESSED": f"{a} is faster", "IMPROVED": f"{b} is faster"}.get(verdict, verdict)


def print_comparison(console: Console, fields: Mapping[str, Any], shown: Callable[[str], str]) -> None:
    """Prints what ``kbench compare --json`` would: ``fields["cases"]`` and ``fields["summary"]``.

    ``shown`` makes text from files safe for a terminal.
    """
    change = fields["kind"] in _CHANGES
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("case", overflow="fold", min_width=34)
    for name in ("A", "B"):
        table.add_column(name, overflow="fold")
        table.add_column(_unit(fields["cases"]), justify="right", no_wrap=True)
    table.add_column("B/A" if change else "A is", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column("pairs", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold", min_width=len("INCONCLUSIVE"))
    for case in fields["cases"]:
        table.add_row(*_row(case, change, shown))
    console.print(table)
    for line in summary_lines(fields, change):
        console.print(Text(shown(line)), soft_wrap=True)


def _unit(cases: Sequence[Mapping[str, Any]]) -> str:
    return "tokens/s" if any(case.get("tokens") for case in cases) else "ms"


def _row(case: Mapping[str, Any], change: bool, shown: Callable[[str], str]) -> list[Text]:
    head = [Text(shown(case["case"] + (f" [{case['subset']}]" if case.get("subset") else "")))]
    sides = []
    for name in ("a", "b"):
        seconds, tokens = case[f"{name}_seconds"], case.get("tokens")
        value = "–" if seconds is None else rate(tokens / seconds) if tokens else milliseconds(seconds)
        sides += [Text(shown(case[name])), Text(value)]
    if case["verdict"] is None:
        reason = f"{case['status']}: {case['reason']}"
        return [*head, *sides, Text(), Text(), Text(), Text(shown(reason), style="yellow")]
    low, high = case["interval"]
    words = verdict_text(case["verdict"], case["a"], case["b"], change)
    n = str(case["n_pairs"] or "+".join(map(str, case.get("n_blocks", ()))))
    return [
        *head, *sides, Text(gain_text(case["ratio"]), style="bold"), Text(f"{low:.3g}–{high:.3g}"),
        Text(n), Text(shown(words), style=_STYLES[case["verdict"]]),
    ]  # fmt: skip


def summary_lines(fields: Mapping[str, Any], change: bool) -> list[str]:
    """For each pair of sides the geometric mean over the cases, in words."""
    lines = []
    for one in fields["summary"]:
        low, high = one["interval"]
        counts = ", ".join(
            f"{n} {verdict_text(verdict, one['a'], one['b'], change)}" for verdict, n in one["counts"].items() if n
        )
        times = f"{one['b']} takes {one['ratio']:.3g} times the time of {one['a']}"
        lines.append(
            f"{times} [{low:.3g}, {high:.3g}], geometric mean of {one['n_cases']}: "
            f"{verdict_text(one['verdict'], one['a'], one['b'], change)}  ({counts})"
        )
    return lines
