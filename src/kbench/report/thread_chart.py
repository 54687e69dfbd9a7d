"""How operations gain from more threads on the CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .axes import Axes, Scale, linear
from .chart import Chart, Fields, legend, legend_lines
from .drawing import Drawing
from .tables import milliseconds

# Lines beyond this cannot be told apart.
_MAX_LINES = 5


def thread_chart(fields: Fields, phase: str) -> Chart | None:
    """Speed by thread count, of the kinds of modules that take longest; None where one count was measured only."""
    units = _seconds(fields, phase)
    counts = sorted({n for by_count in units.values() for n in by_count})
    if len(counts) < 2:
        return None
    whole = {name: by_count for name, by_count in units.items() if set(by_count) == set(counts)}
    heaviest = sorted(whole, key=lambda name: -whole[name][counts[0]])[:_MAX_LINES]
    if not heaviest:
        return None
    chosen = {row["unit"]: row["threads"] for row in fields["ops"] if row["phase"] == phase and row["threads"]}
    rows = [
        [
            name,
            *(f"{milliseconds(by_count[n])} ms" if n in by_count else "–" for n in counts),
            f"{chosen.get(name, '–')}",
        ]
        for name, by_count in sorted(units.items(), key=lambda item: -max(item[1].values()))
    ]
    best = {name: max(counts, key=lambda n: whole[name][counts[0]] / whole[name][n]) for name in heaviest}
    said = "; ".join(
        f"{name} is fastest with {best[name]} ({whole[name][counts[0]] / whole[name][best[name]]:.3g} times)"
        for name in heaviest
    )
    return Chart(
        f"threads-{phase}",
        f"Threads: {phase}",
        f"Speed on the CPU against {counts[0]} thread{'s' if counts[0] > 1 else ''}, for the heaviest kinds of "
        f"modules. {said}. A dashed line shows perfect scaling.",
        lambda width: _draw(heaviest, whole, counts, width),
        ["module", *(f"{n} thread{'s' if n > 1 else ''}" for n in counts), "chosen"],
        rows,
    )


def _seconds(fields: Fields, phase: str) -> dict[str, dict[int, float]]:
    """Seconds of all calls of a kind, by thread count; counts that not every call was measured with are left out."""
    found: dict[str, list[dict[int, float]]] = {}
    for row in fields["ops"]:
        by_count = row.get("seconds_by_threads") or {}
        if row["phase"] == phase and row["op"] != "transfer" and by_count:
            counted = {int(n): row["n_calls"] * s for n, s in by_count.items() if re.fullmatch("[1-9][0-9]{0,3}", n)}
            found.setdefault(row["unit"], []).append({n: s for n, s in counted.items() if s > 0})
    sums = {}
    for name, parts in found.items():
        common = set.intersection(*(set(part) for part in parts))
        if common:
            sums[name] = {n: sum(part[n] for part in parts) for n in sorted(common)}
    return sums


def _draw(
    names: Sequence[str], units: Mapping[str, Mapping[int, float]], counts: Sequence[int], width: float
) -> Drawing:
    keys = [(f"f-line{index}", name) for index, name in enumerate(names)]
    top = 18.0 * legend_lines(keys, width) + 4
    drawing = Drawing(width, top + 230)
    legend(drawing, keys, 12)
    gains = {name: [units[name][counts[0]] / units[name][n] for n in counts] for name in names}
    # Perfect scaling is drawn as far as the highest line needs.
    highest = max(1.0, *(max(line) for line in gains.values()))
    span = max(len(counts) - 1, 1)
    x = Scale(0.0, float(span), False, [(float(i), str(n)) for i, n in enumerate(counts)])
    y = linear(1.1 * max(highest, min(counts[-1] / counts[0], 1.5 * highest)))
    axes = Axes(drawing, x, y, "threads", f"times as fast as with {counts[0]}", top, 230)
    perfect = [(float(i), n / counts[0]) for i, n in enumerate(counts) if n / counts[0] <= y.high]
    drawing.path(list(axes.at(perfect)), "mark dashed")
    for index, name in enumerate(names):
        places = list(axes.at([(float(i), gain) for i, gain in enumerate(gains[name])]))
        drawing.path(places, f"l-line{index}")
        for place, n, gain in zip(places, counts, gains[name], strict=True):
            drawing.circle(*place, 3.5, f"f-line{index}", f"{name}, {n} threads: {gain:.3g} times")
    return drawing
