"""Which cut a product gets: what a rule says, else what was measured on this device, else the heuristic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .int4_tile import Cut
from .tile_cache import Measured, TileCache


class CannotRun(Exception):
    """The device has not what a cut takes."""


# Seconds of one call with a cut; CannotRun where the device cannot run it.
Measure = Callable[[Cut], float]


def row_class(m: int) -> int:
    """Rows of activations that are as good as ``m``: the next power of two, at least the 8 that a product takes."""
    return max(8, 1 << (m - 1).bit_length())


def shape_class(group: int, m: int, n: int, k: int) -> str:
    """Products of one class get one choice."""
    return f"int4 group={group} m={row_class(m)} n={n} k={k}"


def measured_choice(shape: str, wanted: Sequence[Cut], cache: TileCache, measure: Measure | None) -> Cut:
    """The fastest of ``wanted`` on this device: remembered, or measured now and remembered; without ``measure`` (a
    graph is being captured, or nobody may measure) the first.

    A cut that cannot run is left out. Of equals the first is taken, so that a choice does not depend on luck alone.
    """
    known = cache.get(shape)
    if known is not None and known.cut in wanted:
        return known.cut
    if measure is None:
        return wanted[0]
    best: Measured | None = None
    for cut in wanted:
        try:
            seconds = measure(cut)
        except CannotRun:
            continue
        if best is None or seconds < best.seconds:
            best = Measured(cut, seconds)
    if best is None:
        return wanted[0]
    cache.put(shape, best)
    return best.cut
