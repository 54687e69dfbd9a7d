"""A chart: what is drawn, said in words, and listed in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .drawing import Drawing, cut
from .palette import N_DEVICES, standalone_css

Fields = Mapping[str, Any]

# Widths at which a chart is drawn: for a page of text, and for a telephone.
WIDE, NARROW = 760.0, 344.0

# Pixels of one name in a legend: less than a narrow drawing.
_MAX_KEY = 280.0


@dataclass(frozen=True, slots=True)
class Chart:
    """``draw`` makes the drawing for a width; ``header`` and ``rows`` are the same numbers as a table.

    ``name`` is an identifier; ``description`` says what is to be seen, for who does not see it.
    """

    name: str
    title: str
    description: str
    draw: Callable[[float], Drawing]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: Sequence[int] = ()  # columns of the table that hold words, not numbers
    caption: str = ""  # what is read beside the drawing, where ``description`` says too much

    def markup(self, width: float) -> str:
        """The SVG element for a page."""
        kind = "wide" if width == WIDE else "narrow"
        return self.draw(width).markup(f"{self.name}-{kind}", self.title, self.description)

    def file(self) -> str:
        """An SVG file of its own, which follows the light or dark scheme of who looks at it."""
        return self.draw(WIDE).markup(self.name, self.title, self.description, standalone_css())


def device_style(fields: Fields, device: str) -> str:
    """The class that fills with the colour of ``device``."""
    known = list(fields["placement"])
    index = known.index(device) if device in known else N_DEVICES - 1
    return f"f-device{min(index, N_DEVICES - 1)}"


def legend(drawing: Drawing, entries: Sequence[tuple[str, str]], y: float, x: float = 0.0) -> float:
    """Squares with words, (style, words), in as many lines as they need; returns the y below."""
    left = x
    for style, name in entries:
        words = cut(name, _MAX_KEY)
        width = 18 + 6.6 * len(words) + 14
        if left > x and left + width > drawing.width:
            left, y = x, y + 18
        drawing.rect(left, y - 10, 12, 12, style)
        drawing.text(left + 18, y, words, "soft")
        left += width
    return y + 18


def legend_lines(entries: Sequence[tuple[str, str]], width: float) -> int:
    """How many lines ``legend`` takes."""
    n, left = 1, 0.0
    for _, name in entries:
        words = cut(name, _MAX_KEY)
        step = 18 + 6.6 * len(words) + 14
        if left > 0 and left + step > width:
            n, left = n + 1, 0.0
        left += step
    return n
