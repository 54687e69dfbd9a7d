"""What would fit where nothing does: a smaller context, a smaller quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kbench.core import Unsupported
from kbench.model import with_quant

from .layout import Layout
from .placement import least_overflow, solve

# From more bits to fewer; those that people publish.
_LADDER = ("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K")
_LEAST_CONTEXT = 256


def nearest(layout: Layout, rooms: Sequence[int]) -> str:
    """A hint with the largest power-of-two context that fits and the largest quantization whose weights do; empty where
    neither helps. ``rooms`` are bytes for weights and cache by device."""
    found = [part for part in (_smaller_context(layout, rooms), _smaller_quant(layout, rooms)) if part]
    return "or use " + ", or ".join(found) if found else ""


def _smaller_context(layout: Layout, rooms: Sequence[int]) -> str:
    plan = layout.plan
    context = 1 << (plan.context - 1).bit_length() - 1
    while context >= _LEAST_CONTEXT:
        smaller = Layout(replace(plan, context=context), layout.costs, layout.devices)
        if solve(smaller.problem(rooms)) is not None:
            return f"--context {context}, which fits"
        context //= 2
    return ""


def _smaller_quant(layout: Layout, rooms: Sequence[int]) -> str:
    """By the bytes that the file shrinks by: kernels of the other types need not have been measured."""
    model = layout.plan.descriptor
    short = least_overflow(layout.problem(rooms))
    for label in _LADDER[_LADDER.index(model.quant) + 1 :] if model.quant in _LADDER else ():
        try:
            saved = model.n_bytes - with_quant(replace(model, tensors=()), label).n_bytes
        except Unsupported:
            continue
        if saved >= short:
            return f"--quant {label} (a file of it is {saved / 2**30:.3g} GiB smaller)"
    return ""
