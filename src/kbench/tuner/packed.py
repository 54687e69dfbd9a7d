"""Bytes that weights take once an implementation has packed them, learned from what it packed when it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from kbench.core import Problem, quant, work
from kbench.results import Record

# Operations whose one matrix tells the ratio of its storage type.
_TELLING = ("linear", "head_linear", "moe_router")


def stored_bytes(problem: Problem) -> dict[str, int]:
    """Bytes of the weights of ``problem`` by storage type; nothing for attention, whose resident bytes are a cache."""
    if problem.has("kv"):
        return {}
    if problem.op == "moe_experts":
        n, k, experts = (problem.integer(name) for name in ("n", "k", "experts"))
        result: dict[str, int] = {}
        for name, rows, width in (("quant_gate", n, k), ("quant_up", n, k), ("quant_down", k, n)):
            kind = problem.text(name)
            result[kind] = result.get(kind, 0) + experts * rows * quant(kind).row_bytes(width)
        return result
    if problem.op == "rms_norm":
        return {"F32": 4 * problem.integer("d")}
    return {problem.text("quant"): int(work(problem).resident_bytes)} if problem.has("quant") else {}


class PackedRatios:
    """Packed bytes over stored bytes by implementation and storage type."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._ratios: dict[tuple[str, str], Fraction] = {}
        for record in records:
            packed = record.extra.get("prepared_bytes")
            # A record of a part of a problem does not say how large the part was.
            if record.op not in _TELLING or record.extra.get("subset") or not isinstance(packed, int) or packed <= 0:
                continue
            ((kind, stored),) = stored_bytes(record.core_problem()).items()
            self._ratios[_layout(record.implementation), kind] = Fraction(packed, stored)

    def n_bytes(self, problem: Problem, implementation: str) -> int:
        """Packed bytes of the weights of ``problem``; as stored where no record tells."""
        return sum(
            int(stored * self._ratios.get((_layout(implementation), kind), 1))
            for kind, stored in stored_bytes(problem).items()
        )


def _layout(implementation: str) -> str:
    """Native instruction sets read one packed layout."""
    return "cpu" if implementation.startswith("cpu.") else implementation
