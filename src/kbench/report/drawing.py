"""An SVG drawing: a handful of shapes, each with a class for its colour and a title for pointers.

Written here because a chart of the page must follow its light and dark colours, be read out by screen readers, and
hold no script and no style attribute, which its Content-Security-Policy forbids: what plotting libraries write does
not. Elements are built with the standard library's ElementTree, which escapes every text and attribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from kbench.core import shown

_NAMESPACE = "http://www.w3.org/2000/svg"

# What a label can be at most: names come from files.
_MAX_CHARS = 300


def plain(text: str, most: int = _MAX_CHARS) -> str:
    """``text`` on one line, cut, without characters that XML forbids or that a screen obeys."""
    line = " ".join(shown(text[: 4 * most]).split())
    line = line.replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")
    return line if len(line) <= most else f"{line[: most - 1]}…"


class Drawing:
    """Shapes on a canvas of ``width`` × ``height``, y downwards. Lengths are in CSS pixels at full size."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
        self.root = ElementTree.Element("svg", {"xmlns": _NAMESPACE, **size})

    def rect(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        shape = {"x": _n(x), "y": _n(y), "width": _n(max(0.0, width)), "height": _n(max(0.0, height))}
        self._add("rect", {**shape, "class": style}, title)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self._add("line", {"x1": _n(x1), "y1": _n(y1), "x2": _n(x2), "y2": _n(y2), "class": style})

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """A line through ``points``."""
        if points:
            self._add("polyline", {"points": " ".join(f"{_n(x)},{_n(y)}" for x, y in points), "class": style})

    def circle(self, x: float, y: float, radius: float, style: str, title: str = "") -> None:
        self._add("circle", {"cx": _n(x), "cy": _n(y), "r": _n(radius), "class": style}, title)

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
        attributes = {"x": _n(x), "y": _n(y)}
        if style:
            attributes["class"] = style
        if anchor != "start":
            attributes["text-anchor"] = anchor
        self._add("text", attributes).text = plain(words)

    def _add(self, tag: str, attributes: dict[str, str], title: str = "") -> ElementTree.Element:
        element = ElementTree.SubElement(self.root, tag, attributes)
        if title:
            ElementTree.SubElement(element, "title").text = plain(title)
        return element

    def markup(self, name: str, title: str, description: str, css: str = "") -> str:
        """The SVG element; ``name`` makes its ids unique in a page. With ``css`` it is a file of its own."""
        root = ElementTree.Element("svg", {**self.root.attrib, "role": "img"})
        root.set("aria-labelledby", f"{name}-title {name}-desc")
        ElementTree.SubElement(root, "title", {"id": f"{name}-title"}).text = plain(title)
        ElementTree.SubElement(root, "desc", {"id": f"{name}-desc"}).text = plain(description, 4000)
        if css:
            ElementTree.SubElement(root, "style").text = css
            back = {"width": _n(self.width), "height": _n(self.height), "class": "back"}
            ElementTree.SubElement(root, "rect", back)
        root.extend(self.root)
        return ElementTree.tostring(root, encoding="unicode")


def text_width(words: str) -> float:
    """About what ``words`` take at 12 pixels: for deciding whether a label fits."""
    return 6.6 * len(words)


def cut(words: str, room: float) -> str:
    """``words`` as far as they fit ``room``, with an ellipsis."""
    most = max(4, int(room / 7))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
