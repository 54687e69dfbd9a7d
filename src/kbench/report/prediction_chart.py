"""Predicted tokens per second, with what they may be off by, beside measured ones."""

from __future__ import annotations

from .axes import Scale, linear
from .chart import Chart, Fields, legend
from .checked import check_line
from .drawing import Drawing
from .tables import rate

_WORDS = {"decode": "writing", "prefill": "reading"}


def prediction_chart(fields: Fields) -> Chart:
    """A row for each phase: the predicted interval as a band, the prediction and the measurement as marks."""
    predicted, measured = fields["predicted"], fields["measured"]
    rows = []
    for phase, words in _WORDS.items():
        name = f"{phase}_tokens_per_s"
        low_high = predicted.get(f"{phase}_interval") or []
        interval = f"{rate(low_high[0])} to {rate(low_high[1])}" if len(low_high) == 2 else "–"
        row = [words, rate(predicted[name]), interval, rate(measured[name]) if measured else "–"]
        off = f"{(predicted[name] / measured[name] - 1) * 100:+.1f} %" if measured and measured[name] else "–"
        rows.append([*row, off])
    said = "; ".join(f"{row[0]}: predicted {row[1]} ({row[2]}), measured {row[3]}" for row in rows)
    reason = fields.get("measured_reason")
    return Chart(
        "prediction",
        "Predicted and measured tokens per second",
        f"A band for each predicted interval, marks for the prediction and for what was measured. {said}.",
        lambda width: _draw(fields, width),
        ["", "predicted, tokens/s", "interval", "measured, tokens/s", "prediction off by"],
        rows,
        _note(check_line(fields)) if measured or not reason else f"Not measured: {reason}.",
    )


def _note(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}." if line else ""


def _draw(fields: Fields, width: float) -> Drawing:
    predicted, measured = fields["predicted"], fields["measured"]
    row_height = 74.0
    drawing = Drawing(width, 24 + row_height * len(_WORDS))
    keys = [("f-line0", "predicted"), *([("f-line1", "measured")] if measured else [])]
    legend(drawing, keys, 12)
    for index, (phase, words) in enumerate(_WORDS.items()):
        name = f"{phase}_tokens_per_s"
        y = 34 + index * row_height
        interval = predicted.get(f"{phase}_interval") or [predicted[name]] * 2
        values = [*interval, predicted[name], *([measured[name]] if measured else [])]
        scale = linear(1.1 * max(values))
        left, right = 70.0, width - 20

        def at(value: float, scale: Scale = scale, left: float = left, right: float = right) -> float:
            return left + scale.share(value) * (right - left)

        drawing.text(left - 10, y + 14, words, "", "end")
        drawing.rect(left, y, right - left, 20, "track")
        drawing.rect(
            at(interval[0]), y + 5, max(2.0, at(interval[-1]) - at(interval[0])), 10, "f-margin",
            f"predicted {rate(interval[0])} to {rate(interval[-1])}",
        )  # fmt: skip
        drawing.rect(at(predicted[name]) - 2, y - 2, 4, 24, "f-line0", f"predicted {rate(predicted[name])} tokens/s")
        if measured:
            drawing.circle(at(measured[name]), y + 10, 6, "f-line1", f"measured {rate(measured[name])} tokens/s")
        for value, label in scale.ticks:
            drawing.line(at(value), y + 20, at(value), y + 24, "axis")
            drawing.text(at(value), y + 37, label, "soft", "middle")
    return drawing
