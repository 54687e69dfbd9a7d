"""The outcome of a tuning as plain data: what `kbench tune --json` prints and the terminal report shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kbench.core import AUTO, CPU, Device, OpCall, Phase, Placement, work

from .cost_model import MODELLED, Cost
from .layout import Layout
from .price import PhasePrice
from .profile import GpuProfile
from .stage import kind_of, layer_of

_LAYER_NUMBER = re.compile(r"(layers\.)\d+")


@dataclass(frozen=True, slots=True)
class TuneReport:
    """``fields`` is the JSON object without its schema; ``assignment`` what the rules say, by module."""

    fields: Mapping[str, Any]
    assignment: Mapping[str, Placement]
    rules_text: str


def op_rows(prices: Mapping[Phase, PhasePrice], layout: Layout) -> list[dict[str, Any]]:
    """One row for each kind of module, problem, phase and device, with how many calls it stands for."""
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    routed = {layer_of(call.module) for call, _ in prices[Phase.DECODE].calls if call.op == "moe_experts"}
    for phase in (Phase.DECODE, Phase.PREFILL):
        for call, cost in prices[phase].calls:
            pattern = _LAYER_NUMBER.sub(r"\1*", call.module)
            key = (pattern, call.problem, phase, call.device)
            row = rows.get(key)
            if row is None:
                row = rows[key] = _row(call, phase, cost, pattern)
                row["unit"] = kind_of(call.module, layer_of(call.module) in routed)
                row["layers"] = []
                row["alternatives"] = _alternatives(call, layout)
                row["seconds_by_threads"] = _by_threads(call, layout)
            row["n_calls"] += 1
            if match := re.search(r"layers\.(\d+)", call.module):
                row["layers"].append(int(match[1]))
    for row in rows.values():
        row["layers"] = fold_numbers(row["layers"])
    return list(rows.values())


def _row(call: OpCall, phase: Phase, cost: Cost, module: str) -> dict[str, Any]:
    size = work(call.problem)
    stored = size
    if call.attrs.get("masked"):  # its problem has all of the layer's experts
        stored = work(call.problem.replace(experts=len(call.attrs["experts"])))  # type: ignore[arg-type]
    return {
        "op": call.op,
        "module": module,
        "phase": str(phase),
        "problem": call.problem.key,
        "device": str(call.device),
        "impl": cost.implementation if call.implementation in (AUTO, cost.implementation) else call.implementation,
        "threads": cost.threads,
        "seconds": cost.seconds,
        "seconds_interval": [cost.low, cost.high],
        "source": cost.source,
        "measured_as": cost.key or None,
        "flops": size.flops,
        "bytes_touched": size.bytes_touched,
        "elements_resident": stored.elements_resident,
        "resident_bytes": stored.resident_bytes,
        "ai_touched": size.ai_touched,
        "ai_resident": size.ai_resident,
        "n_calls": 0,
    }


def _alternatives(call: OpCall, layout: Layout) -> list[dict[str, Any]]:
    """The call's price on the other devices, or why it has none there."""
    if call.op == "transfer":
        return []
    rows: list[dict[str, Any]] = []
    for device in layout.devices:
        if device == call.device:
            continue
        cost = layout.cost(call, device)
        if cost is None:
            reason = layout.costs.availability.why_not(call.op, device) or "nothing runs it there"
            rows.append({"device": str(device), "seconds": None, "reason": reason})
        else:
            rows.append({"device": str(device), "seconds": cost.seconds, "source": cost.source})
    return rows


def _by_threads(call: OpCall, layout: Layout) -> dict[str, float]:
    """Seconds on the CPU by thread count, wherever the call was placed."""
    costs = {n: layout.cost(call, CPU, n) for n in layout.costs.threads}
    return {str(n): cost.seconds for n, cost in costs.items() if cost is not None}


def fold_numbers(numbers: Iterable[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def prediction(prices: Mapping[Phase, PhasePrice], layout: Layout) -> dict[str, Any]:
    """Tokens per second of both phases; intervals have the slower figure first."""
    decode, prefill = prices[Phase.DECODE], prices[Phase.PREFILL]
    rate, batch = layout.plan.workload.prefill_tokens_per_s, layout.plan.batch
    return {
        "decode_tokens_per_s": batch / decode.seconds,
        "prefill_tokens_per_s": rate(prefill.seconds),
        "decode_interval": [batch / decode.high, batch / decode.low],
        "prefill_interval": [rate(prefill.high), rate(prefill.low)],
        "source": "modelled" if "modelled" in (decode.source, prefill.source) else "measured",
    }


def modelled(prices: Mapping[Phase, PhasePrice], profiles: Mapping[Device, GpuProfile]) -> list[str]:
    """What no measurement stands behind: whatever a GPU does, and what of the CPU was priced from its limits."""
    lines = [
        f"{p.label}: every time on {device}{'' if p.link_is_measured else ' and every transfer'}"
        for device, p in profiles.items()
    ]
    calls = [(call, cost.source) for priced in prices.values() for call, cost in priced.calls]
    sources = [(call.op, source) for call, source in calls if call.device == CPU and call.op != "transfer"]
    names = dict.fromkeys(op for op, source in sources if source == MODELLED)
    if names:
        every = all(source == MODELLED for _, source in sources)
        what = "every time" if every else f"times of {', '.join(names)}"
        lines.append(f"{CPU}: {what}, at a share of the machine's measured limits")
    return lines


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as they are worth telling: four digits."""

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.4g}")
        return [short(item) for item in value] if isinstance(value, list) else value

    return {name: short(value) for name, value in values.items()}
