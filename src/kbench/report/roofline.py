"""Operations under the roofs of their device: arithmetic against bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .axes import Axes, decades
from .chart import Chart, Fields, legend, legend_lines
from .drawing import Drawing, cut, text_width
from .provenance import all_cpu_modelled, cpu_modelled, host_name
from .tables import listed, milliseconds, percent, rate
from .time_chart import part_name

_PHASES = (("decode", "f-line0"), ("prefill", "f-line1"))

# Named in the drawing: what takes most of the time.
_NAMED = 3


def rooflines(fields: Fields) -> list[Chart]:
    """One chart for each device whose ceilings are known."""
    charts = []
    for device in fields["placement"]:
        roofs = [c for c in fields.get("ceilings", ()) if c["device"] == device and _known(c)]
        rows = [row for row in fields["ops"] if row["device"] == device and row["op"] != "transfer"]
        if roofs and rows:
            charts.append(_chart(fields, device, _outer(roofs), rows))
    return charts


def _known(ceiling: Fields) -> bool:
    return bool(ceiling["bandwidth_bytes_per_s"] > 0 and ceiling["operations_per_s"] > 0)


def _outer(roofs: Sequence[Fields]) -> list[Fields]:
    """Of many thread counts the least and the most."""
    ordered = sorted(roofs, key=lambda c: c.get("threads") or 0)
    return ordered if len(ordered) < 2 else [ordered[0], ordered[-1]]


def _achieved(row: Fields) -> float:
    return float(row["flops"] / row["seconds"]) if row["seconds"] else 0.0


def _share(row: Fields, roof: Fields) -> float:
    """Of what the device allows at this intensity."""
    limit = min(roof["operations_per_s"], row["ai_touched"] * roof["bandwidth_bytes_per_s"])
    return _achieved(row) / limit if limit else 0.0


def _chart(fields: Fields, device: str, roofs: Sequence[Fields], rows: Sequence[Fields]) -> Chart:
    roof = roofs[-1]
    drawn = [row for row in rows if row["ai_touched"] > 0 and _achieved(row) > 0]
    source = roof["source"]
    table = [
        [
            part_name(row),
            row["phase"],
            row["problem"],
            f"{row['ai_touched']:.3g}",
            f"{rate(_achieved(row) / 1e9)} GFLOP/s",
            f"{rate(row['bytes_touched'] / row['seconds'] / 1e9)} GB/s" if row["seconds"] else "–",
            percent(_share(row, roof)) if row in drawn else "no arithmetic",
            f"{milliseconds(row['n_calls'] * row['seconds'])} ms",
        ]
        for row in sorted(rows, key=lambda row: (row["phase"], -row["n_calls"] * row["seconds"]))
    ]
    ceiling = "; ".join(_words(c) for c in roofs)
    note = (
        f"The roofs were measured on {host_name(fields)}: reading memory, and arithmetic of the fastest type in "
        f"registers. {_computed(fields)}What lies below them loses time to something else; caches can lift an "
        "operation above the slope."
        if source == "measured"
        else "The roofs are the data sheet's, and the points are computed from them: nothing here was measured."
    )
    return Chart(
        f"roofline-{_identifier(fields, device)}",
        f"Roofline of {device} ({source})",
        f"Floating-point operations per second against operations per byte, both logarithmic. Roofs: {ceiling}. "
        f"{len(drawn)} operations as points; left of the ridge memory is the limit, right of it arithmetic.",
        lambda width: _draw(roofs, drawn, width),
        ["operation", "phase", "problem", "FLOP/byte", "reached", "memory", "of the roof", "in all"],
        table,
        note,
    )


def _computed(fields: Fields) -> str:
    names = cpu_modelled(fields)
    if not names:
        return ""
    return f"The points{'' if all_cpu_modelled(fields) else f' of {listed(names)}'} are computed from them. "


def _identifier(fields: Fields, device: str) -> str:
    """``cuda-0`` for ``cuda:0``; the position of a device whose name, from a file, is no device's."""
    known = re.fullmatch(r"[a-z]{1,10}(:[0-9]{1,3})?", device)
    return device.replace(":", "-") if known else str(list(fields["placement"]).index(device))


def _words(ceiling: Fields) -> str:
    threads = ceiling.get("threads")
    who = ceiling.get("label") or (f"{threads:g} thread{'s' if threads != 1 else ''}" if threads else ceiling["device"])
    return (
        f"{who}: {rate(ceiling['bandwidth_bytes_per_s'] / 1e9)} GB/s, {rate(ceiling['operations_per_s'] / 1e9)} GFLOP/s"
    )


def _draw(roofs: Sequence[Fields], rows: Sequence[Fields], width: float) -> Drawing:
    keys = [(style, phase) for phase, style in _PHASES]
    top = 18.0 * legend_lines(keys, width) + 4
    height = 380.0 if width > 600 else 300.0
    drawing = Drawing(width, top + height)
    legend(drawing, keys, 12)
    intensities = [row["ai_touched"] for row in rows]
    ridges = [c["operations_per_s"] / c["bandwidth_bytes_per_s"] for c in roofs]
    speeds = [_achieved(row) for row in rows]
    x = decades(0.5 * min([*intensities, *ridges]), 3 * max([*intensities, *ridges]))
    peaks = [c["operations_per_s"] for c in roofs]
    y = decades(max(0.5 * min([*speeds, *peaks]), max(peaks) / 1e7), 2 * max([*speeds, *peaks]))
    axes = Axes(drawing, x, y, "FLOP per byte touched", "FLOP/s", top, height)
    for index, roof in enumerate(roofs):
        bandwidth, peak = roof["bandwidth_bytes_per_s"], roof["operations_per_s"]
        start = max(x.low, y.low / bandwidth)
        line = [(start, start * bandwidth), (peak / bandwidth, peak), (x.high, peak)]
        drawing.path(list(axes.at(line)), "mark" if index == len(roofs) - 1 else "mark dashed")
        drawing.text(axes.right, axes.at_y(peak) - 6, _words(roof), "soft", "end")
    heaviest = sorted(rows, key=lambda row: -row["n_calls"] * row["seconds"])
    for phase, style in _PHASES:
        for row in (row for row in rows if row["phase"] == phase):
            at = axes.at_x(row["ai_touched"]), axes.at_y(_achieved(row))
            title = (
                f"{part_name(row)}, {phase}: {row['problem']}; {rate(_achieved(row) / 1e9)} GFLOP/s at "
                f"{row['ai_touched']:.3g} FLOP/byte, {percent(_share(row, roofs[-1]))} of the roof"
            )
            drawing.circle(*at, 5 if row in heaviest[:_NAMED] else 3.5, style, title)
    if width > 600:
        _name(drawing, axes, heaviest)
    return drawing


def _name(drawing: Drawing, axes: Axes, heaviest: Sequence[Fields]) -> None:
    """Names of what takes most of the time, below their points, as far as they do not cover each other."""
    taken: list[tuple[float, float, float]] = []
    for row in heaviest[:_NAMED]:
        words = f"{cut(part_name(row), 220)}, {row['phase']}"
        half = 1.15 * text_width(words) / 2 + 4  # bold
        x = max(half, min(axes.at_x(row["ai_touched"]), axes.right - half))
        y = axes.at_y(_achieved(row)) + 20
        if all(abs(x - other) > half + wide or abs(y - height) > 14 for other, height, wide in taken):
            taken.append((x, y, half))
            drawing.text(x, y, words, "bold", "middle")
