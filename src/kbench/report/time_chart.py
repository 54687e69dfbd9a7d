"""Where the time of a phase goes, operation by operation."""

from __future__ import annotations

from dataclasses import dataclass, field

from .bars import Bar, bars
from .chart import Chart, Fields, device_style
from .tables import milliseconds, percent
from .workload import step_words

# Bars beyond this would be of no visible length; the table has all.
_MAX_BARS = 12


@dataclass(slots=True)
class _Part:
    """One bar: calls of one operation in one kind of module."""

    seconds: float = 0.0
    n_calls: float = 0
    by_device: dict[str, float] = field(default_factory=dict)
    modelled: bool = False


def part_name(row: Fields) -> str:
    """What an operation is called: its kind of module, then the module's or the operation's own name."""
    if row["op"] == "transfer":
        return "transfers between devices"
    own = row["op"] if row["module"].endswith(("self_attn", "*", "mlp")) else row["module"].rpartition(".")[2]
    # "routed experts: experts" and "lm_head: lm_head" say it twice.
    return row["unit"] if own in row["unit"].split() else f"{row['unit']}: {own}"


def time_chart(fields: Fields, phase: str) -> Chart:
    """The operations of ``phase``, longest first."""
    parts: dict[str, _Part] = {}
    for row in fields["ops"]:
        if row["phase"] != phase:
            continue
        part = parts.setdefault(part_name(row), _Part())
        seconds = row["n_calls"] * row["seconds"]
        part.seconds += seconds
        part.n_calls += row["n_calls"]
        part.by_device[row["device"]] = part.by_device.get(row["device"], 0.0) + seconds
        part.modelled |= row["source"] == "modelled"
    total = sum(part.seconds for part in parts.values()) or 1.0
    ordered = sorted(parts.items(), key=lambda item: -item[1].seconds)
    lines = [_bar(fields, name, part, total) for name, part in ordered[:_MAX_BARS]]
    rest = sum(part.seconds for _, part in ordered[_MAX_BARS:])
    if rest:
        n = len(ordered) - _MAX_BARS
        lines.append(Bar(f"{n} more", [(rest, "f-margin", f"{n} more operations")], _value(rest, total)))
    rows = [
        [
            name,
            f"{part.n_calls:g}",
            ", ".join(part.by_device),
            milliseconds(part.seconds),
            percent(part.seconds / total),
            "modelled" if part.modelled else "measured",
        ]
        for name, part in ordered
    ]
    step = step_words(fields) if phase == "decode" else "one step of reading a prompt"
    longest = ", ".join(f"{name} {percent(part.seconds / total)}" for name, part in ordered[:3])
    return Chart(
        f"time-{phase}",
        f"Where the time goes: {phase}",
        f"Bars for the operations of {step}, longest first: {longest}. All take {milliseconds(total)} ms in "
        "sum; what overlaps counts in full.",
        lambda width: bars(lines, width, keys=[(device_style(fields, d), d) for d in fields["placement"]]),
        ["operation", "calls", "on", "milliseconds", "share", "source"],
        rows,
    )


def _bar(fields: Fields, name: str, part: _Part, total: float) -> Bar:
    segments = [
        (seconds, device_style(fields, device), f"{name} on {device}: {milliseconds(seconds)} ms")
        for device, seconds in part.by_device.items()
    ]
    return Bar(name, segments, _value(part.seconds, total))


def _value(seconds: float, total: float) -> str:
    return f"{milliseconds(seconds)} ms, {percent(seconds / total)}"
