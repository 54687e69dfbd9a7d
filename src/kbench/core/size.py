"""Sizes in bytes as people write and read them."""

from __future__ import annotations

import math
import re

from .errors import UserError

# "G" means GiB: memory is sold and reported in powers of two; "GB" is the decimal unit of disks and file listings.
_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[_letter] = _UNITS[_letter + "IB"] = 1024**_power
    _UNITS[_letter + "B"] = 1000**_power

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

# An EiB, which no machine has. What is written with hundreds of digits is no float either.
_MOST_BYTES = 1 << 60


def parse_size(text: str, where: str = "size") -> int:
    """Bytes of ``21G``, ``21GiB`` (2**30), ``21GB`` (10**9) or a bare number.

    Raises:
        UserError: the text is no size, or one beyond every machine's.
    """
    match = _SIZE.fullmatch(text)
    n_bytes = float(match[1]) * _UNITS.get(match[2].upper(), math.nan) if match else math.nan
    if not n_bytes <= _MOST_BYTES:  # nor is it for a unit that there is not
        raise UserError(
            f"{text!r} is not a size",
            where=where,
            accepted="a number with an optional unit: 21G or 21GiB (2^30), 21GB (10^9), 512M, or bare bytes",
            todo="write it like 21G",
        )
    return int(n_bytes)


def format_bytes(n_bytes: float) -> str:
    """``n_bytes`` with three significant digits and a binary unit, e.g. ``12.4 GiB``."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.3g} {unit}"
