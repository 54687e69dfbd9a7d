"""Where a result's numbers are from: of which machine, and what of it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def host_name(fields: Mapping[str, Any]) -> str:
    """The processor that was planned for; that of who reads may be another."""
    host = fields["host"] or fields.get("machine") or {}
    return host.get("cpu", "") or f"host {fields['host_id']}"


def cpu_modelled(fields: Mapping[str, Any]) -> list[str]:
    """Operations whose time on the CPU was computed from the machine's limits, wherever they were placed then; empty:
    all were measured."""
    return list(dict.fromkeys(op for op, source in _cpu_prices(fields) if source == "modelled"))


def all_cpu_modelled(fields: Mapping[str, Any]) -> bool:
    """Whether nothing at all was measured on the CPU."""
    return {source for _, source in _cpu_prices(fields)} == {"modelled"}


def modelled_words(fields: Mapping[str, Any]) -> str:
    """What the prediction rests on no measurement of: ``GPU``, ``GPU and CPU``, ...; empty: nothing."""
    rows = (row for row in fields["ops"] if row["device"] != "cpu" or row["op"] == "transfer")
    parts = ["GPU"] if any(row["source"] == "modelled" for row in rows) else []
    if cpu_modelled(fields):
        parts.append("CPU" if all_cpu_modelled(fields) else "part of the CPU")
    return " and ".join(parts)


def _cpu_prices(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Operation and source of every price on the CPU."""
    for row in fields["ops"]:
        for price in (row, *row["alternatives"]):
            if row["op"] != "transfer" and price["device"] == "cpu" and "source" in price:
                yield row["op"], price["source"]
