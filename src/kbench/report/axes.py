"""Two axes, linear or logarithmic, with their ticks; turns values into places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .drawing import Drawing

LEFT, BOTTOM, TOP, RIGHT = 58.0, 40.0, 22.0, 14.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from ``low`` to ``high``. ``ticks`` are (value, words)."""

    low: float
    high: float
    log: bool
    ticks: Sequence[tuple[float, str]]

    def share(self, value: float) -> float:
        """0 at ``low``, 1 at ``high``; beyond them the nearer of both."""
        if self.log:
            value, low, high = math.log(max(value, 1e-30)), math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))


def linear(high: float, unit: str = "") -> Scale:
    """From 0 to a round figure at or above ``high``, in at most six steps."""
    high = max(high, 1e-12)
    power = 10.0 ** math.floor(math.log10(high))
    step = next(step * power / 10 for step in (1, 2, 5, 10, 20, 50, 100) if high <= 6 * step * power / 10)
    n = math.ceil(high / step - 1e-9)
    return Scale(0.0, n * step, False, [(i * step, f"{i * step:.6g}{unit}") for i in range(n + 1)])


def between(low: float, high: float) -> Scale:
    """Round figures around ``low`` to ``high``, in at most seven steps; not from 0: for what changes by percents."""
    span = max(high - low, 1e-9 * max(abs(high), 1e-12))
    power = 10.0 ** math.floor(math.log10(span))
    step = next(m * power / 10 for m in (1, 2, 5, 10, 20, 50, 100) if span <= 5 * m * power / 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Scale(
        first * step,
        max(last, first + 1) * step,
        False,
        [(i * step, f"{i * step:.6g}") for i in range(first, last + 1)],
    )


def decades(low: float, high: float, most: int = 7) -> Scale:
    """From ``low`` to ``high``, at least a decade, with at most about ``most`` powers of ten named."""
    high = max(high, 10 * low)
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 2:  # too few to read by
        ticks = [(m * 10.0**p, _power(p, m)) for p in range(first - 1, last + 1) for m in (1, 2, 5)]
        return Scale(low, high, True, [(value, words) for value, words in ticks if low <= value <= high])
    every = max(1, math.ceil((last - first) / most))
    return Scale(low, high, True, [(10.0**p, _power(p)) for p in range(first, last + 1, every)])


def _power(power: int, times: int = 1) -> str:
    if -3 <= power <= -1:
        return f"{times * 10.0**power:g}"
    prefix, rest = divmod(power, 3)
    if 0 <= prefix <= 5:
        return f"{times * 10**rest}{['', 'k', 'M', 'G', 'T', 'P'][prefix]}"
    return f"{times}e{power}"


class Axes:
    """A frame in ``drawing`` from ``top`` with ``height``, its lines and names drawn."""

    def __init__(
        self, drawing: Drawing, x: Scale, y: Scale, x_name: str, y_name: str, top: float, height: float
    ) -> None:
        self.drawing, self.x, self.y = drawing, x, y
        self.left, self.right = LEFT, drawing.width - RIGHT
        self.top, self.bottom = top + TOP, top + height - BOTTOM
        for value, words in y.ticks:
            place = self.at_y(value)
            drawing.line(self.left, place, self.right, place, "grid")
            drawing.text(self.left - 6, place + 4, words, "soft", "end")
        for value, words in x.ticks:
            place = self.at_x(value)
            drawing.line(place, self.bottom, place, self.bottom + 4, "axis")
            drawing.text(place, self.bottom + 17, words, "soft", "middle")
        drawing.line(self.left, self.bottom, self.right, self.bottom, "axis")
        drawing.text((self.left + self.right) / 2, self.bottom + 34, x_name, "soft", "middle")
        drawing.text(0, top + 12, y_name, "soft")

    def at_x(self, value: float) -> float:
        return self.left + self.x.share(value) * (self.right - self.left)

    def at_y(self, value: float) -> float:
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def at(self, points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
        return ((self.at_x(x), self.at_y(y)) for x, y in points)
