"""Which implementation multiplies which storage type here, and by what: the table that ``kbench doctor`` prints."""

from __future__ import annotations

from collections.abc import Mapping

from kbench.core import Problem, quant

from .implementation import Implementation
from .random_weight import WEIGHT_TYPES
from .registry import implementations

OWN, DEQUANTISED, NONE = "own", "dequantised", ""


def kernel_of(item: Implementation, quant_name: str) -> str:
    """What multiplies weights of type ``quant_name``: ``own`` (a kernel of this implementation), the name of the
    implementation that a native kernel is taken from, ``dequantised`` (turned into floats first), or nothing."""
    # Any shape that every block size divides will do.
    problem = Problem.make("linear", quant=quant_name, n=256, k=256, tokens=1)
    if not item.supports(problem).ok:
        return NONE
    sources: Mapping[str, str] = getattr(item, "kernel_sources", dict)()
    if quant_name in sources:
        return OWN if sources[quant_name] == item.name else sources[quant_name]
    return OWN if quant(quant_name).is_float and not sources else DEQUANTISED


def support_table() -> dict[str, dict[str, str]]:
    """``kernel_of`` by type and by implementation, for those that run here, best first."""
    runnable = [item for item in implementations() if item.runnable().ok]
    return {name: {item.name: kernel_of(item, name) for item in runnable} for name in WEIGHT_TYPES}
