"""Which values of a program outlive it: bytes of the others are used again, by later values of the same run."""

from __future__ import annotations

from collections.abc import Iterable

from kbench.core import OpCall

# Nothing but the logits; the experts that routers chose; everything.
NOTHING, EXPERTS, EVERYTHING = KEEPS = ("nothing", "experts", "everything")


def chosen_experts(calls: Iterable[OpCall]) -> tuple[str, ...]:
    """Names of the values that hold the ids of the experts that each token visits, ``[tokens, top_k]``."""
    return tuple(call.outputs[0].name for call in calls if call.op == "moe_router" and call.outputs)
