"""Durations as people write them."""

from __future__ import annotations

import re

from .errors import UserError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_PART = r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|)\s*"

# A thousand hours: beyond that somebody mistyped.
_MOST_SECONDS = 3.6e6


def parse_duration(text: str, where: str = "duration") -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``1h30m``.

    Raises:
        UserError: the text is no duration, or none that ends.
    """
    seconds = None
    if re.fullmatch(rf"\s*(?:{_PART})+", text, re.IGNORECASE):
        seconds = sum(float(number) * _UNITS[unit.lower()] for number, unit in re.findall(_PART, text, re.IGNORECASE))
    if seconds is None or not 0 < seconds <= _MOST_SECONDS:
        raise UserError(f"{text!r} is not a duration", where=where, accepted="10m, 90s, 1h30m, or bare seconds")
    return seconds
