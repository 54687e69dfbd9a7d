"""A value with its unit, in the size that is read best."""

from __future__ import annotations

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def scaled(largest: float, unit: str) -> tuple[float, str]:
    """What to multiply values of ``unit`` with, the largest of which is ``largest``, and what they are then in."""
    if unit != "seconds":
        return 1.0, unit
    size, name = next((one for one in _SECONDS if largest >= one[0]), _SECONDS[-1])
    return 1 / size, name


def quantity(value: float, unit: str) -> str:
    """``1.23 ms``, ``312 tokens/s``."""
    factor, name = scaled(value, unit)
    return f"{value * factor:.4g} {name}"


def change(cost: float) -> str:
    """A factor of cost in words: ``12 % slower``, ``5 % faster``, ``3.1 times slower``."""
    if abs(cost - 1) < 5e-4:
        return "the same"
    if 0.5 < cost < 2:
        return f"{(cost - 1) * 100:.3g} % slower" if cost > 1 else f"{(1 - cost) * 100:.3g} % faster"
    return f"{cost:.3g} times slower" if cost > 1 else f"{1 / cost:.3g} times faster"
