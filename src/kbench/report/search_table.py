"""What a search of threads and kernel parameters measured, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from .tables import milliseconds, percent, table


def print_search(console: Console, search: Mapping[str, Any]) -> None:
    """One line for each problem that was searched, and one for each group of modules that runs otherwise now.

    ``search`` is the field of that name of a tune's result.
    """
    spaces = search["spaces"]
    caption = f"{search['n_measured']} measured now in {search['seconds']:.0f} s; the rest was known."
    if search["spaces_left"]:
        caption += f" {search['spaces_left']} problems were left when the time was over: run it again."
    rows = table(
        "Search",
        ("problem", "left"), ("settings", "right"), ("known", "right"), ("new", "right"), ("default ms", "right"),
        ("best ms", "right"), ("best", "left"),
        caption=caption,
    )  # fmt: skip
    for column in (rows.columns[0], rows.columns[-1]):  # else a narrow terminal shows these and no number
        column.no_wrap, column.overflow = False, "fold"
    for space in spaces:
        rows.add_row(
            space["problem"],
            str(space["settings"]),
            str(space["known"]),
            str(space["measured_now"]),
            milliseconds(space["default_seconds"]),
            milliseconds(space["best_seconds"]),
            _changed(space["best"], space.get("default", {})),
        )
    console.print(rows)
    if not search["choices"]:
        console.print(
            "The defaults are as fast as anything that was found: the rules say nothing of kernel parameters."
        )
        return
    chosen = table("Chosen", ("modules", "left"), ("threads", "left"), ("block", "left"), ("faster", "right"))
    for choice in search["choices"]:
        first, *more = choice["modules"]
        decode, prefill = choice["threads"]["decode"], choice["threads"]["prefill"]
        chosen.add_row(
            first + (f" and {len(more)} more" if more else ""),
            str(decode) if decode == prefill else f"{decode}, prefill {prefill}",
            ", ".join(f"{name}={value}" for name, value in choice["block"].items()) or "defaults",
            percent(choice["gain"]),
        )
    console.print(chosen)


def _changed(best: Mapping[str, Any], default: Mapping[str, Any]) -> str:
    """Those values of the best setting that are not the default's."""
    changed = [f"{name}={value}" for name, value in best.items() if value != default.get(name)]
    return ", ".join(changed) or "as by default"
