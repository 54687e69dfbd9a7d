"""The pairs of one comparison in the order taken."""

from __future__ import annotations

from collections.abc import Sequence

from kbench.results import VerdictRow

from .axes import Axes, Scale, between
from .chart import Chart
from .drawing import Drawing
from .ratio_chart import case_name

_HEIGHT = 190.0
# As many as a comparison takes at most, twice over.
_MOST = 400


def pair_ratios(row: VerdictRow) -> list[float]:
    """B's seconds over A's of each pair; none where the samples are not there, or are no pairs."""
    a, b = row.extra.get("a_samples") or (), row.extra.get("b_samples") or ()
    if len(a) != len(b):
        return []
    return [y / x for x, y in zip(a, b, strict=True) if x > 0 and y > 0][:_MOST]


def pairs_chart(row: VerdictRow, name: str) -> Chart | None:
    """``name`` is an identifier that no other chart of the page has; None without two pairs."""
    ratios = pair_ratios(row)
    if len(ratios) < 2 or row.ratio is None:
        return None
    return Chart(
        name,
        f"Pairs of {case_name(row)}",
        f"{len(ratios)} pairs in the order taken, {min(ratios):.3g} to {max(ratios):.3g}, estimate {row.ratio:.4g}.",
        lambda width: _draw(row, ratios, width),
        ["pair", "B over A"],
        [[str(number), f"{value:.5g}"] for number, value in enumerate(ratios, start=1)],
        caption=f"{len(ratios)} pairs in the order taken: time of B over time of A. The band is the interval, the line "
        f"the estimate, {row.ratio:.4g}.",
    )


def _draw(row: VerdictRow, ratios: Sequence[float], width: float) -> Drawing:
    drawing = Drawing(width, _HEIGHT)
    ordered, cut = sorted(ratios), len(ratios) // 25
    ends = [value for value in (row.low, row.high, row.ratio) if value is not None]
    y = between(min(ordered[cut], 0.98, *ends), max(ordered[-1 - cut], 1.02, *ends))
    last = len(ratios) + 0.5
    every = max(1, len(ratios) // 6)
    x = Scale(0.5, last, False, [(float(n), str(n)) for n in range(1, len(ratios) + 1, every)])
    axes = Axes(drawing, x, y, "pair", "B over A", 0, _HEIGHT)
    if row.low is not None and row.high is not None:
        top, bottom = axes.at_y(row.high), axes.at_y(row.low)
        drawing.rect(axes.left, top, axes.right - axes.left, max(1.0, bottom - top), "track")
    one = axes.at_y(1.0)
    drawing.line(axes.left, one, axes.right, one, "axis")
    if row.ratio is not None:
        drawing.path([(axes.left, axes.at_y(row.ratio)), (axes.right, axes.at_y(row.ratio))], "l-line0")
    for number, value in enumerate(ratios, start=1):
        drawing.circle(axes.at_x(number), axes.at_y(value), 2.8, "f-margin", f"pair {number}: {value:.4g}")
    return drawing
