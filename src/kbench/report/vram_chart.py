"""Tokens per second against GPU memory, and a table of cards that are sold."""

from __future__ import annotations

from collections.abc import Sequence

from kbench.core import format_bytes
from kbench.results import SOLD_GIB

from .axes import Axes, linear
from .chart import Chart, Fields
from .drawing import Drawing
from .tables import rate

_GIB = 2.0**30


def planned_vram(fields: Fields) -> float:
    """Budget of the first GPU, which the curve varies; others keep theirs."""
    by_device = fields["budgets"].get("by_device", {})
    return float(next((n for device, n in by_device.items() if device != "cpu"), fields["budgets"]["vram_bytes"]))


def vram_chart(fields: Fields) -> Chart | None:
    """None for a tune without a GPU."""
    points = list(fields.get("vram_curve", ()))
    fitting = [p for p in points if p["used_bytes"] is not None and p.get("decode_tokens_per_s")]
    if len(fitting) < 2:
        return None
    own = planned_vram(fields)
    last = fitting[-1]["decode_tokens_per_s"]
    enough = next(p for p in fitting if p["decode_tokens_per_s"] >= 0.99 * last)
    largest = fitting[-1]["vram_bytes"]
    beyond = (
        f"; from {format_bytes(enough['vram_bytes'])} on, more memory, up to {format_bytes(largest)}, brings less than "
        "one percent"
        if enough["vram_bytes"] < largest
        else ""
    )
    rows = [_row(point, own) for point in points]
    return Chart(
        "vram",
        "Speed against GPU memory",
        f"Tokens per second as the GPU memory that may be used grows. Writing rises from "
        f"{rate(fitting[0]['decode_tokens_per_s'])} tokens/s at {format_bytes(fitting[0]['vram_bytes'])} to "
        f"{rate(last)}{beyond}.",
        lambda width: _draw(fitting, own, width),
        ["GPU memory", "of it used", "writing, tokens/s", "reading, tokens/s", ""],
        rows,
        "The same model, host and workload, placed anew for each budget (within 0.5 % of the best possible), on a GPU "
        "as fast as the one planned for.",
    )


def what_if_rows(fields: Fields) -> list[list[str]]:
    """Cards with common memory sizes: what each would bring."""
    points = {p["vram_bytes"]: p for p in fields.get("vram_curve", ())}
    own = points.get(planned_vram(fields))
    now = own.get("decode_tokens_per_s") if own else None
    rows = []
    for gib in SOLD_GIB:
        point = points.get(gib << 30)
        if point is None:
            continue
        if point["used_bytes"] is None or not point.get("decode_tokens_per_s"):
            rows.append([f"{gib} GiB", "does not fit", "–", "–", "–"])
            continue
        change = f"{(point['decode_tokens_per_s'] / now - 1) * 100:+.0f} %" if now else "–"
        rows.append([f"{gib} GiB", *_rates(point), change.replace("+0 %", "same").replace("-0 %", "same")])
    return rows


def own_row(fields: Fields) -> list[str] | None:
    """The same for the memory that was planned for."""
    own = planned_vram(fields)
    point = next((p for p in fields.get("vram_curve", ()) if p["vram_bytes"] == own), None)
    if not own or point is None or point["used_bytes"] is None or not point.get("decode_tokens_per_s"):
        return None
    return [f"{format_bytes(own)} (this plan)", *_rates(point), "–"]


def _rates(point: Fields) -> list[str]:
    return [
        format_bytes(point["used_bytes"]),
        rate(point["decode_tokens_per_s"]),
        rate(point["prefill_tokens_per_s"]) if point.get("prefill_tokens_per_s") else "–",
    ]


def _row(point: Fields, own: float) -> list[str]:
    mine = "this plan" if point["vram_bytes"] == own else ""
    if point["used_bytes"] is None or not point.get("decode_tokens_per_s"):
        return [format_bytes(point["vram_bytes"]), "does not fit", "–", "–", mine]
    return [format_bytes(point["vram_bytes"]), *_rates(point), mine]


def _draw(points: Sequence[Fields], own: float, width: float) -> Drawing:
    panels = [("decode_tokens_per_s", "writing, tokens/s", "0"), ("prefill_tokens_per_s", "reading, tokens/s", "1")]
    height = 210.0
    drawing = Drawing(width, height * len(panels))
    # Beyond twice what is asked for nothing is to be seen but a flat line.
    flat = max((p["used_bytes"] for p in points), default=0)
    high = max(own * 1.3, min(flat * 1.6, points[-1]["vram_bytes"]), 1.0)
    shown = [p for p in points if p["vram_bytes"] <= high] or points
    for index, (name, words, colour) in enumerate(panels):
        values = [(p["vram_bytes"] / _GIB, p.get(name) or 0.0) for p in shown]
        x, y = linear(values[-1][0]), linear(1.08 * max(value for _, value in values))
        axes = Axes(drawing, x, y, "GPU memory that may be used, GiB", words, index * height, height)
        places = list(axes.at(values))
        drawing.path(places, f"l-line{colour}")
        for (gib, value), place in zip(values, places, strict=True):
            drawing.circle(*place, 3.5, f"f-line{colour}", f"{gib:.3g} GiB: {rate(value)} tokens/s")
        if own:
            at = axes.at_x(own / _GIB)
            drawing.line(at, axes.top, at, axes.bottom, "mark dashed")
            left = at > axes.right - 80
            drawing.text(at + (-6 if left else 6), axes.bottom - 8, "this plan", "bold", "end" if left else "start")
    return drawing
