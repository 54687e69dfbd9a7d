"""Horizontal bars with a label and a value each; labels stand beside the bars, or above them where it is narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .chart import legend, legend_lines
from .drawing import Drawing, cut, text_width

_LABEL_WIDTH, _VALUE_WIDTH = 220.0, 140.0


@dataclass(frozen=True, slots=True)
class Bar:
    """Segments are (length, style, title); ``value`` is said at its end. ``full`` draws a track of that length."""

    label: str
    segments: Sequence[tuple[float, str, str]]
    value: str
    full: float = 0.0


def bars(
    rows: Sequence[Bar], width: float, *, keys: Sequence[tuple[str, str]] = (), at: float | None = None, said: str = ""
) -> Drawing:
    """Bars on one scale. ``at`` draws a line at that length, which ``said`` names; ``keys`` is the legend."""
    narrow = width < 600
    step = 40.0 if narrow else 26.0
    left = 0.0 if narrow else _LABEL_WIDTH
    room = width - left - (0.0 if narrow else _VALUE_WIDTH)
    top = 18.0 * legend_lines(keys, width) + 6 if keys else 4.0
    top += 16.0 if said else 0.0
    drawing = Drawing(width, top + step * len(rows) + 2)
    if keys:
        legend(drawing, keys, 12)
    longest = max([1e-30, *(max(bar.full, sum(s[0] for s in bar.segments)) for bar in rows)])
    for index, bar in enumerate(rows):
        y = top + index * step
        if narrow:
            drawing.text(0, y + 12, cut(bar.label, width - text_width(bar.value) - 8))
            drawing.text(width, y + 12, bar.value, "soft", "end")
            y += 17
        else:
            drawing.text(left - 10, y + 14, cut(bar.label, left - 12), "", "end")
        x = left
        if bar.full:
            drawing.rect(x, y + 2, bar.full / longest * room, 16, "free")
        for length, style, title in bar.segments:
            drawing.rect(x, y + 2, length / longest * room, 16, style, title)
            x += length / longest * room
        if not narrow:
            end = max(x, left + max(bar.full, at or 0.0) / longest * room)
            drawing.text(end + 8, y + 14, bar.value, "soft")
    if at is not None:
        x = left + at / longest * room
        drawing.line(x, top - 4, x, drawing.height, "mark dashed")
        anchor = "end" if x > width - text_width(said) else "start"
        drawing.text(x + (-4 if anchor == "end" else 4), top - 6, said, "soft", anchor)
    return drawing
