"""What a page is made of: sections under headings, of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .chart import Chart


@dataclass(frozen=True, slots=True)
class Block:
    """One thing of a section. ``kind`` is paragraph, note, heading, figures, chart, table, code, details
    (``blocks`` under ``label`` and ``text``, which open them) or open-details."""

    kind: str
    text: str = ""
    chart: Chart | None = None
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    words: Sequence[int] = ()  # columns of a table that hold words, not numbers
    label: str = ""
    blocks: Sequence[Block] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, with the identifier that links to it, and what stands under it."""

    id: str
    title: str
    blocks: list[Block] = field(default_factory=list)


def charts_of(found: Sequence[Section]) -> list[Chart]:
    """Every chart of a page, in its order."""
    return [chart for section in found for chart in _charts(section.blocks)]


def _charts(blocks: Sequence[Block]) -> Iterator[Chart]:
    for block in blocks:
        if block.chart is not None:
            yield block.chart
        yield from _charts(block.blocks)
