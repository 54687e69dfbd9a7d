"""Ratios of cases with their intervals, one line each, against the margin."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kbench.results import VerdictRow

from .axes import Scale
from .chart import Chart, legend, legend_lines
from .drawing import Drawing, cut
from .tables import milliseconds, rate

# Lines beyond this are no picture; the table has all.
_MOST = 60
_ROW = 20.0
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_STYLES = {"REGRESSED": "warn", "IMPROVED": "line2", "SAME": "line0", "INCONCLUSIVE": "margin"}


def ratio_chart(rows: Sequence[VerdictRow], change: bool) -> Chart | None:
    """Of the rows that have a ratio, in their order; None without any."""
    judged = [row for row in rows if row.ratio is not None and 0 < row.ratio < math.inf]
    if not judged:
        return None
    slower = sum(row.verdict == "REGRESSED" for row in judged)
    faster = sum(row.verdict == "IMPROVED" for row in judged)
    known = len(judged) - slower - faster
    more = f" The first {_MOST} of {len(judged)} are drawn." if len(judged) > _MOST else ""
    return Chart(
        "ratios",
        "Time of B over time of A",
        f"A mark for the ratio of each of {len(judged)} cases, a line for its interval: in {slower} B is slower, in "
        f"{faster} it is faster, in {known} neither is known.{more}",
        lambda width: _draw(judged[:_MOST], width),
        ["case", "A", "B", "ratio", "interval", "pairs", "verdict"],
        [_row(row) for row in judged],
        caption=f"Time of B over time of A, with the interval that covers it; left of 1 B is faster. The band is the "
        f"margin: less is not called a {'change' if change else 'difference'}.{more}",
    )


def _row(row: VerdictRow) -> list[str]:
    interval = f"{row.low:.4g} to {row.high:.4g}" if row.low is not None and row.high is not None else "–"
    sides = [side_speed(row, seconds) for seconds in (row.a_seconds, row.b_seconds)]
    counts = str(row.n_pairs or "+".join(str(n) for n in row.n_blocks if n) or "–")
    return [case_name(row), *sides, f"{row.ratio:.4g}", interval, counts, row.outcome]


def case_name(row: VerdictRow) -> str:
    return f"{row.case} {row.implementation or f'{row.a} / {row.b}'}"


def side_speed(row: VerdictRow, seconds: float | None) -> str:
    if not seconds:
        return "–"
    return f"{rate(row.tokens / seconds)} tokens/s" if row.tokens else f"{milliseconds(seconds)} ms"


def _draw(rows: Sequence[VerdictRow], width: float) -> Drawing:
    keys = [("f-warn", "B slower"), ("f-line2", "B faster"), ("f-line0", "the same"), ("f-margin", "not known")]
    top = 8 + 18.0 * legend_lines(keys, width)
    bottom = top + _ROW * len(rows)
    drawing = Drawing(width, bottom + 40)
    legend(drawing, keys, 12)
    ends = [value for row in rows for value in (row.low, row.high, row.ratio) if value is not None and value > 0]
    low, high = min(0.93, *(max(v, 0.02) for v in ends)) * 0.97, max(1.07, *(min(v, 100.0) for v in ends)) * 1.03
    left, right = width * 0.42, width - 14
    x = Scale(low, high, True, _ticks(low, high, right - left))

    def at(value: float) -> float:
        return left + x.share(value) * (right - left)

    margin = max(row.margin for row in rows)
    if margin > 0:
        start, end = at(1 / (1 + margin)), at(1 + margin)
        drawing.rect(start, top, end - start, bottom - top, "track", f"margin {margin:.1%}")
    for value, words in x.ticks:
        drawing.line(at(value), top, at(value), bottom + 4, "mark" if value == 1 else "grid")
        drawing.text(at(value), bottom + 17, words, "soft", "middle")
    drawing.text((left + right) / 2, bottom + 34, "times as long", "soft", "middle")
    for index, row in enumerate(rows):
        y = top + _ROW * (index + 0.5)
        drawing.text(0, y + 4, cut(case_name(row), left - 8), "soft" if row.verdict == "SAME" else "")
        style = _STYLES.get(row.verdict, "margin")
        if row.low is not None and row.high is not None:
            drawing.line(at(row.low), y, at(row.high), y, f"l-{style}")
        drawing.circle(at(row.ratio or 1.0), y, 4, f"f-{style}", f"{case_name(row)}: {row.ratio:.4g}, {row.outcome}")
    return drawing


def _ticks(low: float, high: float, room: float) -> list[tuple[float, str]]:
    """Round figures that stand apart by 40 pixels; 1 is one of them."""
    per_pixel = math.log(high / low) / max(room, 1.0)
    chosen: list[float] = [1.0]
    for value in sorted(_TICKS, key=lambda tick: (tick not in (0.5, 2.0, 0.1, 10.0, 0.9, 1.1), abs(math.log(tick)))):
        if low <= value <= high and all(abs(math.log(value / other)) > 40 * per_pixel for other in chosen):
            chosen.append(value)
    return [(value, f"{value:g}") for value in sorted(chosen)]
