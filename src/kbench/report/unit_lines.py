"""A tune's operations summed up by kind of module: what each costs on each device, and where it was put."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = Mapping[str, Any]

# Units in the order in which a token meets them.
_ORDER = (
    "embedding", "stream", "q projections", "kv projections", "attention", "o projection", "linear attention",
    "dense FFN", "routed experts", "shared experts", "final norm", "lm_head", "transfers",
)  # fmt: skip


def unit_order() -> dict[str, int]:
    """Position of each kind of module."""
    return {name: position for position, name in enumerate(_ORDER)}


@dataclass(slots=True)
class UnitLine:
    """Sums over the calls of a kind of module, or of a part of it: ``decode`` and ``prefill`` have its seconds on each
    device it could run on (None where nothing runs it), ``placed`` on those it was placed on, ``phases`` of each phase.
    """

    name: str
    n_calls: int = 0
    n_bytes: float = 0.0
    elements: float = 0.0
    flops: float = 0.0
    decode: dict[str, float | None] = field(default_factory=dict)
    prefill: dict[str, float | None] = field(default_factory=dict)
    placed: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    modelled: bool = False

    def add(self, row: Fields) -> None:
        n = row["n_calls"]
        self.phases[row["phase"]] = self.phases.get(row["phase"], 0.0) + n * row["seconds"]
        self.modelled |= row["source"] == "modelled"
        known = self.decode if row["phase"] == "decode" else self.prefill
        prices = {row["device"]: row["seconds"], **{a["device"]: a["seconds"] for a in row["alternatives"]}}
        for device, seconds in prices.items():
            before = known.get(device, 0.0)
            known[device] = None if seconds is None or before is None else before + n * seconds
        if row["phase"] != "decode":
            return
        self.n_calls += n
        self.n_bytes += n * row["resident_bytes"]
        self.elements += n * row["elements_resident"]
        self.flops += n * row["flops"]
        self.placed[row["device"]] = self.placed.get(row["device"], 0.0) + n * row["seconds"]


def unit_lines(rows: Iterable[Fields]) -> list[tuple[UnitLine, list[UnitLine]]]:
    """The kinds of modules in the order in which a token meets them, each with its parts where they differ."""
    units: dict[str, tuple[UnitLine, dict[str, UnitLine]]] = {}
    for row in rows:
        name = "transfers" if row["op"] == "transfer" else row["unit"]
        unit, parts = units.setdefault(name, (UnitLine(name), {}))
        unit.add(row)
        if row["resident_bytes"] and row["op"] not in ("rms_norm", "transfer"):
            part = row["op"] if row["module"].endswith("self_attn") else row["module"].rpartition(".")[2]
            parts.setdefault(part, UnitLine(part)).add(row)
    order = unit_order()
    chosen = sorted(units.values(), key=lambda pair: order.get(pair[0].name, len(order)))
    return [(unit, list(parts.values()) if _differ(parts.values()) else []) for unit, parts in chosen]


def _differ(parts: Iterable[UnitLine]) -> bool:
    """Whether parts have different intensities: then each is worth a line, for it is what explains placements."""
    return len({round(part.flops / part.elements, 2) for part in parts if part.elements}) > 1
