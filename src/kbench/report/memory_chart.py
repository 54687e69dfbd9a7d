"""What each device's memory holds, as a bar of its budget."""

from __future__ import annotations

from kbench.core import format_bytes

from .bars import Bar, bars
from .chart import Chart, Fields
from .tables import percent

_PARTS = (
    ("weights_bytes", "weights", "weights"),
    ("kv_bytes", "cache", "cache (KV)"),
    ("workspace_bytes", "workspace", "workspace"),
    ("runtime_bytes", "runtime", "runtime"),
    ("swapped_bytes", "loading", "one layer brought in"),
    ("pinned_bytes", "pinned", "pinned buffers"),
    ("loading_bytes", "loading", "while loading"),
    ("margin_bytes", "margin", "left free on purpose"),
)


def memory_chart(fields: Fields) -> Chart:
    """One bar a device; a full bar is its budget."""
    lines, rows = [], []
    for device, memory in fields["placement"].items():
        budget = memory["budget_bytes"]
        parts = [(memory.get(name, 0), style, words) for name, style, words in _PARTS]
        share = memory["total_bytes"] / budget if budget else 0.0
        value = f"{format_bytes(memory['total_bytes'])} of {format_bytes(budget)}"
        scale = budget or 1
        segments = [(n / scale, f"f-{style}", f"{device}: {words} {format_bytes(n)}") for n, style, words in parts if n]
        lines.append(Bar(f"{device} ({percent(share)} used)", segments, value, full=1.0))
        free = max(0, budget - memory["total_bytes"] - memory.get("margin_bytes", 0))
        rows.append([device, *(format_bytes(n) for n, _, _ in parts), format_bytes(free), format_bytes(budget)])
    used = [any(memory.get(name, 0) for memory in fields["placement"].values()) for name, _, _ in _PARTS]
    keys = [(f"f-{style}", words) for (_, style, words), shown in zip(_PARTS, used, strict=True) if shown]
    said = "; ".join(f"{line.label}: {line.value}" for line in lines)
    return Chart(
        "memory",
        "Memory by device",
        f"A bar for each device, as long as its budget, filled with what it holds. {said}.",
        lambda width: bars(lines, width, keys=[*keys, ("free", "unused")]),
        ["device", *(words for _, _, words in _PARTS), "unused", "budget"],
        rows,
        caption="A bar for each device, as long as its budget, filled with what it holds.",
    )
