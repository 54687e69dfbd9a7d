"""Colours by name, for light and for dark pages.

Text and marks keep a contrast of at least 4.5 to their page (WCAG AA). Devices differ in lightness too, and every chart
says in words what its colours say.
"""

from __future__ import annotations

# name: (on a light page, on a dark page)
COLOURS = {
    "page": ("#ffffff", "#14181f"),
    "panel": ("#f4f6f9", "#1d232d"),
    "ink": ("#1a2029", "#e8ecf2"),
    "soft": ("#525d6e", "#a9b4c4"),
    "rule": ("#cfd6e0", "#3a4454"),
    "link": ("#0a58b0", "#7fb8ff"),
    "warn": ("#9a3412", "#ffb27a"),
    # On a filled mark.
    "on": ("#ffffff", "#14181f"),
    # Devices, in order: the host first.
    "device0": ("#1d5fae", "#79b4f7"),
    "device1": ("#b3430f", "#f7a35c"),
    "device2": ("#6b3fa0", "#c3a4f5"),
    "device3": ("#1c7a4b", "#6fd49d"),
    "device4": ("#a02c6d", "#f297c8"),
    # Parts of a memory.
    "weights": ("#1d5fae", "#79b4f7"),
    "cache": ("#a02c6d", "#f297c8"),
    "workspace": ("#1c7a4b", "#6fd49d"),
    "runtime": ("#6b3fa0", "#c3a4f5"),
    "pinned": ("#b3430f", "#f7a35c"),
    "loading": ("#0f6b75", "#63c7d2"),
    "margin": ("#667287", "#8c99ad"),
    # Lines of a chart.
    "line0": ("#1d5fae", "#79b4f7"),
    "line1": ("#b3430f", "#f7a35c"),
    "line2": ("#1c7a4b", "#6fd49d"),
    "line3": ("#a02c6d", "#f297c8"),
    "line4": ("#6b3fa0", "#c3a4f5"),
}

N_DEVICES = sum(name.startswith("device") for name in COLOURS)

# What the classes of a chart's marks mean, in terms of custom properties.
_RULES = [
    "svg text{fill:var(--ink);font:12px system-ui,sans-serif}",
    "svg text.soft{fill:var(--soft)}svg text.on{fill:var(--on)}svg text.bold{font-weight:600}",
    # Words over lines: with an edge of the ground's colour.
    "svg text.bold{paint-order:stroke;stroke:var(--page);stroke-width:4px}",
    "svg .grid{stroke:var(--rule);stroke-width:1}svg .axis{stroke:var(--soft);stroke-width:1}",
    "svg .free{fill:none;stroke:var(--soft);stroke-width:1}svg .track{fill:var(--panel)}",
    "svg .mark{stroke:var(--ink);stroke-width:2;fill:none}svg .dashed{stroke-dasharray:5 4}svg .back{fill:var(--page)}",
]


def chart_css() -> str:
    """The rules for charts, for a page that defines the properties."""
    rules = list(_RULES)
    for name in COLOURS:
        rules.append(
            f"svg .f-{name}{{fill:var(--{name})}}svg .l-{name}{{stroke:var(--{name});fill:none;stroke-width:2}}"
        )
    return "\n".join(rules)


def page_properties() -> str:
    """Custom properties that follow the page's colour scheme."""
    return "".join(f"--{name}:light-dark({light},{dark});" for name, (light, dark) in COLOURS.items())


def standalone_css() -> str:
    """For an SVG file of its own: no custom properties, which converters to pixels do not know."""

    def resolved(side: int) -> str:
        text = chart_css()
        for name, colours in COLOURS.items():
            text = text.replace(f"var(--{name})", colours[side])
        return text

    return f"{resolved(0)}\n@media (prefers-color-scheme:dark){{{resolved(1)}}}"
