"""One case through time: a mark a commit, its levels as lines, its steps named."""

from __future__ import annotations

from collections.abc import Sequence

from .axes import Axes, Scale, between
from .chart import WIDE, Chart, Fields, legend
from .drawing import Drawing, text_width
from .quantity import change, quantity, scaled

# Marks beyond this cannot be told apart; the levels are those of all.
_MOST = 400
_HEIGHT = 250.0
# Of each state its colour, its words, and what of them stands beside the change in the picture.
_STATES = {
    "open": ("warn", "still slower", ""),
    "recovered": ("line1", "recovered", "recovered"),
    "improved": ("line2", "faster", ""),
    "flapping": ("line4", "back and forth", "back and forth"),
    "accepted": ("line3", "accepted", "accepted"),
    "environment": ("line3", "the machine changed", "the machine changed"),
    "fixed": ("line3", "marked fixed", "marked fixed"),
}


def state_words(state: str) -> str:
    """What a step's state says, for who does not see its colour."""
    return _STATES.get(state, ("", state, ""))[1]


def history_chart(case: Fields, name: str) -> Chart:
    """``name`` is an identifier that no other chart of the page has."""
    points, unit = case["points"], case["unit"]
    steps = "; ".join(
        f"{short(step['commit'])}: {change(step['cost'])}, {state_words(step['state'])}" for step in case["steps"]
    )
    said = f"Steps: {steps}." if steps else "No step."
    rows = [
        [
            short(point["commit"]),
            point["created"][:10],
            quantity(point["value"], unit),
            f"{quantity(point['low'], unit)} to {quantity(point['high'], unit)}" if point["n_runs"] > 1 else "–",
            f"{point['n_runs']}",
            next((change(s["cost"]) for s in case["steps"] if s["at"] == index), ""),
        ]
        for index, point in enumerate(points)
    ]
    better = "lower" if case["direction"] == "lower" else "higher"
    return Chart(
        name,
        f"{case['case']} {case['implementation']}",
        f"{len(points)} commits, oldest first; {better} is better. Now {quantity(case['now'], unit)}. {said}",
        lambda width: _draw(case, width),
        ["commit", "measured", "median", "of its runs", "runs", "step"],
        rows[::-1],
        caption=f"{len(points)} commits, oldest first; {better} is better. The axis does not begin at 0.",
    )


def short(commit: str) -> str:
    """A commit as people say it; what is none, a release or a long name, as far as there is room."""
    return commit[:9] if len(commit) >= 40 else commit[:20]


def _draw(case: Fields, width: float) -> Drawing:
    first = max(0, len(case["points"]) - _MOST)
    points = list(enumerate(case["points"]))[first:]
    levels = [level for level in case["levels"] if level["stop"] > first]
    steps = [step for step in case["steps"] if step["at"] > first]
    factor, unit = scaled(max(level["value"] for level in levels), case["unit"])
    drawing = Drawing(width, _HEIGHT + 44)
    legend(drawing, [("f-margin", "a commit"), ("f-line0", "level")], 12)
    x = Scale(first - 0.5, first + len(points) - 0.5, False, _ticks(points, width))
    y = _room([point["value"] * factor for _, point in points], [level["value"] * factor for level in levels])
    axes = Axes(drawing, x, y, "commit", unit, 40, _HEIGHT)
    for index, point in points:
        words = f"{short(point['commit'])}, {point['created'][:10]}: {quantity(point['value'], case['unit'])}"
        drawing.circle(axes.at_x(index), axes.at_y(point["value"] * factor), 2.8, "f-margin", words)
    for level in levels:
        left, right = axes.at_x(max(level["start"], first) - 0.5), axes.at_x(level["stop"] - 0.5)
        height = axes.at_y(level["value"] * factor)
        drawing.path([(left, height), (right, height)], "l-line0")
    _name_steps(drawing, axes, steps)
    return drawing


def _name_steps(drawing: Drawing, axes: Axes, steps: Sequence[Fields]) -> None:
    """A line at each, with words where there is room for them; all are in the table."""
    ends = [-1.0, -1.0]
    for step in steps:
        style, _, words = _STATES.get(step["state"], ("margin", "", step["state"]))
        place = axes.at_x(step["at"] - 0.5)
        drawing.line(place, axes.top - 6, place, axes.bottom, f"l-{style} dashed")
        label = ", ".join(filter(None, [change(step["cost"]), words]))
        size = text_width(label)
        start = min(place + 4, axes.right - size)
        row = next((row for row in (0, 1) if ends[row] < start - 6), None)
        if row is None or start < 0:
            continue
        drawing.text(start, axes.top - 8 - 14 * row, label, "bold")
        ends[row] = start + size


def _ticks(points: Sequence[tuple[int, Fields]], width: float) -> list[tuple[float, str]]:
    """Some commits' names, the last among them, as many as stand side by side."""
    most = max(1, int((width - 80) // 92))
    every = max(1, -(-len(points) // most))
    chosen = points[::-1][::every][::-1] if width >= WIDE else points[::-1][:: max(every, 1)][::-1]
    # A name is centred on its place: the outermost must not leave the drawing.
    edge = len(points) * 34 / (width - 80)
    return [
        (float(index), short(point["commit"]))
        for index, point in chosen
        if points[0][0] + edge <= index <= points[-1][0] - edge or len(points) < 3
    ]


def _room(values: Sequence[float], levels: Sequence[float]) -> Scale:
    """Around the levels and all but the outermost values, which are drawn at the edge."""
    ordered = sorted(values)
    cut = len(ordered) // 50
    low, high = min(ordered[cut], *levels), max(ordered[-1 - cut], *levels)
    space = max(0.15 * (high - low), 0.02 * high)
    return between(max(low - space, 0.0), high + space)
