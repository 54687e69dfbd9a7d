"""Kernel parameters that were swept: what each setting takes beside the default."""

from __future__ import annotations

from .bars import Bar, bars
from .chart import Chart, Fields
from .tables import milliseconds

# Sweeps that are drawn: those where settings differ most. The tables of the others say little.
_MAX_SWEEPS = 6
_MAX_SETTINGS = 16


def block_charts(fields: Fields) -> list[Chart]:
    """The sweeps whose settings differ most, most first."""
    sweeps = [s for s in fields.get("block_sweeps", ()) if s["settings"] and s["settings"][0]["seconds"] > 0]
    sweeps.sort(key=lambda s: -_spread(s))
    return [_chart(sweep, index) for index, sweep in enumerate(sweeps[:_MAX_SWEEPS])]


def _spread(sweep: Fields) -> float:
    seconds = [setting["seconds"] for setting in sweep["settings"] if setting["seconds"] > 0]
    return float(max(seconds) / min(seconds))


def _chart(sweep: Fields, index: int) -> Chart:
    default = sweep["settings"][0]["seconds"]
    ordered = sorted(sweep["settings"], key=lambda setting: setting["seconds"])
    lines = [
        Bar(
            setting["block"],
            [(setting["seconds"] / default, _style(setting["seconds"] / default), setting["block"])],
            f"{milliseconds(setting['seconds'])} ms, {(setting['seconds'] / default - 1) * 100:+.0f} %",
        )
        for setting in ordered[:_MAX_SETTINGS]
    ]
    rows = [
        [s["block"], f"{milliseconds(s['seconds'])} ms", f"{(s['seconds'] / default - 1) * 100:+.1f} %"]
        for s in ordered
    ]
    return Chart(
        f"block-{index}",
        f"{sweep['problem']}, {sweep['implementation']}",
        f"Time with each setting of the kernel's parameters beside the default, shortest first: {ordered[0]['block']} "
        f"takes {ordered[0]['seconds'] / default * 100:.0f} % of its time.",
        lambda width: bars(lines, width, at=1.0, said="default"),
        ["setting", "time", "against the default"],
        rows,
    )


def _style(ratio: float) -> str:
    return "f-line2" if ratio < 0.97 else "f-line1" if ratio > 1.03 else "f-line0"
