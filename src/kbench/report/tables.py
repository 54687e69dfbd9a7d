"""Numbers, bars and tables as the terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉"


def table(title: str, *columns: tuple[str, str], caption: str = "") -> Table:
    """A table without vertical lines; each column is (header, justification)."""
    made = Table(
        title=title,
        box=SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        caption=caption or None,
        caption_justify="left",
        caption_style="dim",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for header, justify in columns:
        made.add_column(header, justify="right" if justify == "right" else "left", no_wrap=True)
    return made


def bar(share: float, width: int = 20) -> Text:
    """A bar of ``width`` cells filled to ``share``; red when it is over 1."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    filled = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    text = Text(filled, style="red" if share > 1 else "cyan")
    text.append("░" * (width - len(filled)), style="dim")
    return text


def milliseconds(seconds: float | None) -> str:
    """Milliseconds to three digits; a dash for nothing."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    if value < 0.01:
        return "<0.01" if value else "0"
    return f"{value:.2f}" if value < 1 else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def rate(per_second: float) -> str:
    """A rate to three digits or to whole numbers."""
    return f"{per_second:.3g}" if per_second < 100 else f"{per_second:,.0f}"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; at least one name."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def percent(share: float) -> str:
    """A share of one; what would round to nothing shows as less than the smallest step."""
    if share == 0:
        return "0%"
    return "<0.1%" if share < 0.001 else f"{share * 100:.1f}%"
