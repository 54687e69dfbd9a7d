"""What packing weights takes and what they take then, learned from what was packed when it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from kbench.core import OpCall, Problem, quant, work
from kbench.results import Record


@dataclass(frozen=True, slots=True)
class Packing:
    """Bytes of the file, bytes in memory, seconds (None: unknown) without those of reading the file."""

    stored_bytes: int
    packed_bytes: int
    seconds: float | None


# Operations whose one matrix tells the ratio of its storage type.
_TELLING = ("linear", "head_linear", "moe_router")


def stored_bytes(problem: Problem) -> dict[str, int]:
    """Bytes of the weights of ``problem`` by storage type; nothing for attention, whose resident bytes are a cache."""
    if problem.op in ("attention", "mla_attention"):
        return {}
    if problem.op == "mla_decompressed":
        row, sizes = problem.integer("kv_lora"), dict[str, int]()
        for kind, rows in ((problem.text(f"quant_{of}"), problem.integer(n)) for of, n in (("k", "nope"), ("v", "v"))):
            sizes[kind] = sizes.get(kind, 0) + problem.integer("heads") * rows * quant(kind).row_bytes(row)
        return sizes
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
    """Packed bytes and seconds of packing over stored bytes, by implementation and storage type."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._ratios: dict[tuple[str, str], Fraction] = {}
        # (stored bytes, seconds) of the largest matrix that was packed: starting threads must not count.
        self._largest: dict[tuple[str, str], tuple[int, float]] = {}
        for record in records:
            packed = record.extra.get("prepared_bytes")
            # A record of a part of a problem does not say how large the part was.
            if record.op not in _TELLING or record.extra.get("subset") or not isinstance(packed, int) or packed <= 0:
                continue
            ((kind, stored),) = stored_bytes(record.core_problem()).items()
            key = _layout(record.implementation), kind
            self._ratios[key] = Fraction(packed, stored)
            seconds = record.extra.get("prepare_seconds")
            if isinstance(seconds, float) and seconds > 0 and stored > self._largest.get(key, (0, 0.0))[0]:
                self._largest[key] = stored, seconds

    def n_bytes(self, problem: Problem, implementation: str) -> int:
        """Packed bytes of the weights of ``problem``; as stored where no record tells."""
        return sum(
            int(stored * self._ratios.get((_layout(implementation), kind), 1))
            for kind, stored in stored_bytes(problem).items()
        )

    def seconds(self, problem: Problem, implementation: str) -> float | None:
        """Seconds that packing the weights of ``problem`` takes; None where no record tells."""
        total = 0.0
        for kind, stored in stored_bytes(problem).items():
            largest = self._largest.get((_layout(implementation), kind))
            if largest is not None:
                total += stored / largest[0] * largest[1]
            elif problem.op != "rms_norm":  # a few floats
                return None
        return total

    def roughly(self, problem: Problem, implementation: str) -> float | None:
        """Like ``seconds``; a type that no record tells of packs as slowly as the slowest known one. None: none is."""
        exact = self.seconds(problem, implementation)
        layout = _layout(implementation)
        rates = [taken / n_bytes for (of, _), (n_bytes, taken) in self._largest.items() if of == layout]
        if exact is not None or not rates:
            return exact
        return max(rates) * sum(stored_bytes(problem).values())


def packing(calls: Iterable[tuple[OpCall, str]], ratios: PackedRatios) -> Packing:
    """Packing all weights of ``calls``, each once; with every call, the implementation that it is packed for."""
    stored, packed = 0, 0
    seconds: float | None = 0.0
    known: set[object] = set()
    for call, name in calls:
        # MLA reads one tensor as several stacks of matrices.
        key = (call.weights, call.problem if call.op in ("head_linear", "mla_decompressed") else None)
        if not call.weights or key in known:
            continue
        known.add(key)
        stored += sum(stored_bytes(call.problem).values())
        packed += ratios.n_bytes(call.problem, name)
        part = ratios.seconds(call.problem, name)
        seconds = None if seconds is None or part is None else seconds + part
    return Packing(stored, packed, seconds)


def _layout(implementation: str) -> str:
    """Native instruction sets read one packed layout."""
    return "cpu" if implementation.startswith("cpu.") else implementation
