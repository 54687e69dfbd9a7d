"""What one would otherwise wonder about a plan: rules of thumb beside it, and what a little more memory would bring."""

from __future__ import annotations

from kbench.core import format_bytes
from kbench.results import NOTICED, rules_of_thumb

from .bars import Bar, bars
from .chart import Chart, Fields
from .checked import planned
from .tables import rate

_OF = {"workload": "the whole workload", "decode": "writing", "prefill": "reading"}
# Bars are cut here; their values say what they stand for.
_LONGEST = 5.0


def thumbs(fields: Fields) -> list[Fields]:
    """The rules of thumb of a result: as stored, or of what it holds."""
    return list(fields.get("rules_of_thumb") or rules_of_thumb(fields))


def longer(ratio: float) -> str:
    """How much longer than the plan, in words."""
    if 1 / NOTICED < ratio < NOTICED:
        return "the same"
    return f"{(ratio - 1) * 100:+,.0f} %"


def thumb_rows(fields: Fields) -> list[list[str]]:
    """Rule, what it says, what was timed, how much longer it takes."""
    return [[row["name"], row["words"], _of(row), longer(row["ratio"])] for row in thumbs(fields)]


def _of(row: Fields) -> str:
    """What was timed, in words."""
    of = str(row["of"])
    return _OF.get(of, of)


def thumb_warning(fields: Fields) -> str:
    """Rules of thumb that people go by and that would be slower here, with by how much; empty: none would."""
    slower = sorted((row for row in thumbs(fields) if row["ratio"] >= NOTICED), key=lambda row: -row["ratio"])
    told = ", ".join(f"{row['name']} ({longer(row['ratio'])})" for row in slower)
    return f"rules of thumb that would take longer here: {told}" if told else ""


def thumb_chart(fields: Fields) -> Chart | None:
    """A bar for each rule of thumb, as long as the time it takes; the plan's is the line."""
    rows = thumbs(fields)
    if not rows:
        return None
    lines = [Bar("this plan", [(1.0, "f-line2", "this plan")], "")]
    lines += [
        Bar(
            row["name"],
            [(min(row["ratio"], _LONGEST), _style(row["ratio"]), f"{row['words']}: {longer(row['ratio'])}")],
            longer(row["ratio"]),
        )
        for row in rows
    ]
    slower = [row for row in rows if row["ratio"] >= NOTICED]
    said = f"{len(slower)} of {len(rows)} would be slower" if slower else "none would be slower"
    return Chart(
        "thumbs",
        "Rules of thumb, beside this plan",
        f"A bar for each rule that people go by, as long as the time that it takes; the line is this plan: {said}.",
        lambda width: bars(lines, width, at=1.0, said="this plan"),
        ["rule", "what it says", "time of", "longer than this plan"],
        thumb_rows(fields),
        "Priced by the same model as the plan, each as full as it fits.",
        words=(1, 2),
    )


def gain_rows(fields: Fields) -> list[list[str]]:
    """What more, and tokens per second that it would add."""
    return [
        [_more(row), *(_gain(row, fields, phase) for phase in ("decode", "prefill"))]
        for row in fields.get("sensitivity", ())
    ]


def gain_lines(fields: Fields) -> list[str]:
    """The same, a line each, for a terminal."""
    return [f"{what}: writing {decode}, reading {prefill}" for what, decode, prefill in gain_rows(fields)]


def gain_chart(fields: Fields) -> Chart | None:
    """A bar for each thing that there could be more of, as long as the share that writing would gain."""
    rows = list(fields.get("sensitivity", ()))
    if not rows:
        return None
    now = planned(fields)["decode_tokens_per_s"]
    lines = []
    for row in rows:
        share = row.get("decode_tokens_per_s", 0.0) / now if now else 0.0
        value = _gain(row, fields, "decode").partition(" (")[0]
        label = _more(row).partition(" (")[0]
        lines.append(Bar(label, [(min(max(share, 0.0), _LONGEST), "f-line2", f"{_more(row)}: {value}")], value))
    said = "; ".join(f"{line.label}: {line.value}" for line in lines)
    return Chart(
        "gains",
        "What a little more would bring",
        f"A bar for each thing that there could be more of, as long as what writing would gain by it. {said}.",
        lambda width: bars(lines, width),
        ["more", "writing", "reading"],
        gain_rows(fields),
        "Solved again with that much more memory; for a channel, the same placement priced with its bandwidth.",
        caption="A bar for each thing that there could be more of, as long as what writing would gain by it.",
    )


def _more(row: Fields) -> str:
    if speed := row.get("extra_bytes_per_s"):
        return f"another memory channel ({speed / 1e9:.3g} GB/s; modelled)"
    return f"{format_bytes(row['extra_bytes'])} more on {row['device']}"


def _gain(row: Fields, fields: Fields, phase: str) -> str:
    more, now = row.get(f"{phase}_tokens_per_s", 0.0), planned(fields)[f"{phase}_tokens_per_s"]
    if abs(more) < 1e-3 * now or not more:
        return "nothing"
    sign = "+" if more > 0 else "−"
    share = f" ({more / now * 100:+.1f} %)" if now else ""
    return f"{sign}{rate(abs(more))} tokens/s{share}"


def _style(ratio: float) -> str:
    return "f-line1" if ratio >= NOTICED else "f-line0"
