"""Which device runs which kind of module in which layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .chart import Chart, Fields, device_style, legend, legend_lines
from .drawing import Drawing, cut, text_width
from .unit_lines import unit_order
from .why import NAMES

# No model has more; a file that claims so draws nothing beyond.
_MAX_LAYERS = 1000

# Where a cell has no unit, e.g. routed experts in a dense layer.
_NOTHING = ""


def numbers_of(folded: str) -> list[int]:
    """The layers of ``0-3,7``, at most a thousand of them; what is none is left out."""
    found: set[int] = set()
    for first, last in re.findall(r"(?<![\d-])(\d{1,4})(?:-(\d{1,4}))?(?![\d-])", folded):
        found |= set(range(int(first), min(int(last or first), _MAX_LAYERS) + 1))
    return sorted(number for number in found if number < _MAX_LAYERS)


def layer_devices(fields: Fields) -> dict[str, dict[int | None, str]]:
    """By kind of module the device of each layer; None is the key of what stands outside the layers."""
    kinds: dict[str, dict[int | None, str]] = {}
    for row in fields["ops"]:
        if row["op"] == "transfer" or row["phase"] != "decode":
            continue
        places = kinds.setdefault(row["unit"], {})
        numbers: list[int | None] = [*numbers_of(row["layers"])]
        for number in numbers or [None]:
            places.setdefault(number, row["device"])
    order = unit_order()
    return dict(sorted(kinds.items(), key=lambda item: order.get(item[0], len(order))))


def placement_map(fields: Fields) -> Chart:
    """Layers from left to right, kinds of modules from top to bottom, coloured by device."""
    kinds = layer_devices(fields)
    numbers = [number for places in kinds.values() for number in places if number is not None]
    n_layers = max(numbers, default=-1) + 1
    devices = list(fields["placement"])
    rows = []
    for kind, places in kinds.items():
        by_device: dict[str, list[int]] = {}
        for number, device in places.items():
            by_device.setdefault(device, []).extend([] if number is None else [number])
        cells = [_ranges(by_device[d]) or "yes" if d in by_device else "–" for d in devices]
        rows.append([NAMES.get(kind, kind), *cells])

    def draw(width: float) -> Drawing:
        return _draw(fields, kinds, n_layers, width)

    said = "; ".join(_sentence(NAMES.get(kind, kind), places) for kind, places in kinds.items())
    return Chart(
        "placement",
        "What runs where",
        f"A row for each kind of module, a column for each of {n_layers} layers, coloured by device. {said}.",
        draw,
        ["module", *(f"layers on {device}" for device in devices)],
        rows,
        caption="A row for each kind of module, a column for each layer, coloured by the device that runs it.",
    )


def _sentence(kind: str, places: dict[int | None, str]) -> str:
    parts: dict[str, list[int | None]] = {}
    for number, device in places.items():
        parts.setdefault(device, []).append(number)
    inner = ", ".join(
        f"{device} layers {_ranges(n for n in numbers if n is not None)}" if None not in numbers else device
        for device, numbers in parts.items()
    )
    return f"{kind}: {inner}"


def _ranges(numbers: Iterable[int]) -> str:
    runs = _runs(sorted(numbers))
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _draw(fields: Fields, kinds: dict[str, dict[int | None, str]], n_layers: int, width: float) -> Drawing:
    narrow = width < 600
    left = 0.0 if narrow else 200.0
    step, height = (38.0, 18.0) if narrow else (27.0, 20.0)
    keys = [(device_style(fields, device), device) for device in fields["placement"]]
    top = 18.0 * legend_lines(keys, width) + 8
    drawing = Drawing(width, top + step * len(kinds) + 24)
    legend(drawing, keys, 12)
    cell = (width - left) / max(1, n_layers)
    gap = 1.0 if cell > 4 else 0.0
    for index, (unit, places) in enumerate(kinds.items()):
        kind = NAMES.get(unit, unit)
        y = top + index * step
        if narrow:
            drawing.text(0, y + 12, cut(kind, width))
            y += 17
        else:
            drawing.text(left - 10, y + 14, cut(kind, left - 12), "", "end")
        drawing.rect(left, y, width - left, height, "track")
        if None in places:
            _fill(drawing, left, y, width - left, height, fields, kind, places[None], "")
            continue
        for first, last in _runs(sorted(n for n in places if n is not None)):
            start = first
            for number in range(first, last + 1):
                if number == last or places[number + 1] != places[number]:
                    x, run = left + start * cell, (number - start + 1) * cell - gap
                    layers = f"layer {start}" if start == number else f"layers {start} to {number}"
                    _fill(drawing, x, y, run, height, fields, kind, places[number], layers)
                    start = number + 1
    every = max(1, next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000) if n * cell >= 26))
    bottom = top + step * len(kinds) + 12
    for number in range(0, n_layers, every):
        x = left + (number + 0.5) * cell
        drawing.text(x, bottom, str(number), "soft", "start" if number == 0 and narrow else "middle")
    if not narrow:
        drawing.text(left - 10, bottom, "layer", "soft", "end")
    return drawing


def _fill(
    drawing: Drawing, x: float, y: float, width: float, height: float, fields: Fields, kind: str, device: str, at: str
) -> None:
    drawing.rect(x, y, width, height, device_style(fields, device), f"{kind}, {at}: {device}" if at else device)
    if text_width(device) + 6 < width:
        drawing.text(x + width / 2, y + height / 2 + 4, device, "on", "middle")
