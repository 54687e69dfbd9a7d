"""How often values cross from one device to another in a step, and how many bytes: counted from lowering's calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbench.core import AUTO, CPU, Assignment, OpCall, Phase

from .descriptor import ModelDescriptor
from .lower import lower

# float32 and int32: the only types that values have.
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Crossing:
    """Transfers of a step from device ``src`` to ``dst``: how many, and their bytes together."""

    src: str
    dst: str
    n_transfers: int
    n_bytes: int


def crossings(calls: Iterable[OpCall]) -> list[Crossing]:
    """By the two devices, in their order."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for call in calls:
        if call.op == "transfer":
            p = call.problem
            count, n_bytes = found.get((p.text("src"), p.text("dst")), (0, 0))
            size = _ELEMENT_BYTES * p.integer("d") * p.integer("tokens")
            found[p.text("src"), p.text("dst")] = count + 1, n_bytes + size
    return [Crossing(*ends, *sums) for ends, sums in sorted(found.items())]


def planned_crossings(
    descriptor: ModelDescriptor, assignment: Assignment, phase: Phase, tokens: int = 1
) -> list[Crossing]:
    """Those of a step of ``tokens``, whose logits are wanted on the CPU; what implementations run makes no difference.
    Errors as for ``lower``."""
    calls = lower(
        descriptor, assignment, phase, tokens, max(tokens, 1), deliver=CPU, resolve=lambda *_: AUTO
    )  # fmt: skip
    return crossings(calls)
