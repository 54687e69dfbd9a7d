"""Why each kind of module is where it is: its price on every device, and the reason in words."""

from __future__ import annotations

from collections.abc import Mapping

from kbench.core import format_bytes

from .chart import Fields
from .tables import listed, milliseconds, rate
from .unit_lines import UnitLine, unit_lines

# Nearer than this, devices are as fast as each other.
_NOTICED = 1.05
# Beyond this a gain is a mistake of its file.
_MAX_GAIN = 1e6

NAMES = {"stream": "norms, router and residual", "lm_head": "the output matrix", "attention": "attention"}


def why_rows(fields: Fields) -> tuple[list[str], list[list[str]]]:
    """Header and rows: each kind of module, its price on each device, and the reason for its place."""
    devices = list(fields["placement"])
    reasons = {
        (row["unit"], a["device"]): a["reason"]
        for row in fields["ops"]
        for a in row["alternatives"]
        if a["seconds"] is None and "reason" in a
    }
    rows = []
    for unit, _ in unit_lines(fields["ops"]):
        if unit.name == "transfers" or not unit.placed:
            continue
        prices = [_price(unit.decode.get(device)) for device in devices]
        intensity = f"{unit.flops / unit.elements:.3g}" if unit.elements and unit.flops else "–"
        size = format_bytes(unit.n_bytes) if unit.n_bytes else "–"
        name = NAMES.get(unit.name, unit.name)
        rows.append([name, listed(list(unit.placed)), _reason(unit, devices, reasons), size, intensity, *prices])
    # Words first: what is to the right, a telephone shows only when asked.
    header = ["module", "runs on", "because", "size", "FLOP per element", *(f"ms on {device}" for device in devices)]
    return header, rows


def _price(seconds: float | None) -> str:
    return "cannot" if seconds is None else milliseconds(seconds)


def _reason(unit: UnitLine, devices: list[str], reasons: dict[tuple[str, str], str]) -> str:
    if len(devices) == 1:
        return "there is no other device"
    if len(unit.placed) > 1:
        return "what fits goes to the faster device, layer by layer"
    (here,) = unit.placed
    others = [device for device in devices if device != here]
    if all(unit.decode.get(device) is None for device in others):
        return next((reasons[unit.name, d] for d in others if (unit.name, d) in reasons), "nothing runs it elsewhere")
    writing, reading = _gain(unit.decode, here, others), _gain(unit.prefill, here, others)
    if writing > _NOTICED:
        more = f" (reading: {rate(reading)} times)" if reading > _NOTICED else ""
        return f"writing is {rate(writing)} times as fast here{more}"
    if reading > _NOTICED:
        less = f", though writing is {rate(1 / writing)} times as fast elsewhere" if writing < 1 / _NOTICED else ""
        return f"reading is {rate(reading)} times as fast here{less}"
    if writing < 1 / _NOTICED:
        return f"{rate(1 / writing)} times as fast elsewhere, but memory or crossings are better spent on others"
    return "as fast as elsewhere; this way values cross less"


def _gain(prices: Mapping[str, float | None], here: str, others: list[str]) -> float:
    """How many times as fast as on the best other device; 1 where that cannot be said."""
    mine = prices.get(here)
    best = min((s for d in others if (s := prices.get(d)) is not None), default=None)
    return min(max(best / mine, 1 / _MAX_GAIN), _MAX_GAIN) if mine and best else 1.0
