"""The fields of a tune's result, and the provenance that its rules carry."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kbench import __version__
from kbench.core import CPU, OpCall, Phase, format_bytes
from kbench.measure import Host
from kbench.model import ModelDescriptor, model_stem
from kbench.results import IN_TURNS, NOW, OF_THE_PLAN, STORED

from .memory import memory, workspace
from .model_hash import model_hash
from .packed import packing
from .placed import Placed
from .placement import Solution
from .plan import Plan
from .presets import presets
from .prove import Proof
from .report import modelled, op_rows, prediction, rounded
from .request import TuneRequest
from .sensitivity import sensitivity
from .streaming import Streaming

# People name a card by its round size, of which the driver keeps a little.
_MORE_THAN_ALL = 1.03


def file_stem(request: TuneRequest, descriptor: ModelDescriptor) -> str:
    """The model file's name, or the model's own: every config.json is called that."""
    path = Path(request.model)
    name = model_stem(path) if path.is_file() and path.suffix.lower() != ".json" else descriptor.name
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80].lower() or "model"


def provenance(request: TuneRequest, plan: Plan, placed: Placed, host_id: str, proof: Proof) -> dict[str, Any]:
    """Where the rules came from; numbers rounded to what they are worth."""
    predicted = proof.predicted or prediction(placed.prices, placed.layout)
    return {
        "model": f"{plan.descriptor.name} {plan.descriptor.quant}",
        "model_sha": model_hash(plan.descriptor),
        "host_id": host_id,
        "kbench_version": __version__,
        "budgets": {str(b.device): b.total_bytes for b in placed.available},
        "workload": _workload(plan),
        "predicted": rounded(predicted),
        "measured": rounded(proof.measured) if proof.measured else proof.reason,
        "modelled": modelled(placed.prices, placed.profiles),
        "result_ids": _result_ids(placed),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _result_ids(placed: Placed) -> list[str]:
    """Keys of the records that the placed modules' times came from."""
    keys = (f"{cost.key} {cost.implementation}" for p in placed.prices.values() for _, cost in p.calls if cost.key)
    return list(dict.fromkeys(keys))


def _workload(plan: Plan) -> dict[str, int | str]:
    wanted = plan.workload
    return {
        "prompt_tokens": wanted.prompt_tokens,
        "gen_tokens": wanted.gen_tokens,
        "context": plan.context,
        "batch": plan.batch,
        "chunk": wanted.chunk,
        "kv": plan.kv,
        "objective": wanted.objective,
        **({"routing": plan.routing} if plan.routing else {}),
    }


def result_fields(
    request: TuneRequest,
    plan: Plan,
    placed: Placed,
    host_id: str,
    proof: Proof,
    path: Path | None,
    machine: Host | None = None,
) -> dict[str, Any]:
    """The JSON object, in the order in which it is read."""
    descriptor, measured, planned = plan.descriptor, proof.measured, prediction(placed.prices, placed.layout)
    predicted = proof.predicted or planned
    by_device = {budget.device: budget for budget in placed.available}
    error = None
    if measured:
        error = {
            name.split("_")[0]: predicted[name] / measured[name] - 1
            for name in ("decode_tokens_per_s", "prefill_tokens_per_s")
        }
    greedy_seconds = placed.greedy_seconds
    gpus = {str(d): {"name": p.name, "label": p.label, "source": "modelled"} for d, p in placed.profiles.items()}
    return {
        "model": {
            "name": descriptor.name,
            "arch": descriptor.architecture,
            "params": descriptor.n_params,
            "bytes": descriptor.n_bytes,
            "quant": descriptor.quant,
            "source": request.model,
        },
        "host_id": host_id,
        "host": {"cpu": machine.cpu.model, "cores": machine.usable_cpus} if machine else None,
        "gpu": next(iter(gpus.values()), None),
        "gpus": gpus,
        "budgets": {
            "vram_bytes": sum(b.total_bytes for d, b in by_device.items() if d != CPU),
            "dram_bytes": by_device[CPU].total_bytes,
            "by_device": {str(device): budget.total_bytes for device, budget in by_device.items()},
        },
        "workload": _workload(plan),
        "ops": op_rows(placed.prices, placed.layout),
        "placement": memory(placed.layout, placed.problem, placed.solution, placed.prices, placed.available),
        "sensitivity": sensitivity(placed.layout, placed.problem, placed.solution),
        "presets": {name: rival.seconds for name, rival in _rivals(placed).items()},
        "streaming": [_streaming(item, placed) for item in placed.streaming],
        "packing": asdict(packing(_packed_calls(placed), placed.layout.costs.packed)),
        "predicted": predicted,
        "planned": planned,
        "measured": measured,
        "measured_reason": proof.reason or None,
        "error": error,
        "check": _check(proof),
        "notes": _notes(plan, placed),
        "rules_path": str(path) if path else None,
        "solver": {
            "status": placed.solution.status,
            "gap": placed.solution.gap,
            "seconds": placed.solution.seconds,
            "greedy_seconds": greedy_seconds,
        },
        "elapsed_s": 0.0,
    }


def _check(proof: Proof) -> dict[str, str] | None:
    """What is predicted and what is measured come of: samples that took turns, and when."""
    if not proof.measured:
        return None
    return {
        "prediction": IN_TURNS if proof.in_turns else OF_THE_PLAN,
        "run": STORED if proof.stored else NOW,
        "created": proof.created,
    }


def _streaming(item: Streaming, placed: Placed) -> dict[str, object]:
    there = item.device in placed.layout.swapped_to(placed.solution)
    return item.fields(placed.threshold if there else 0)


def _rivals(placed: Placed) -> dict[str, Solution]:
    """What other tools would do with the first GPU."""
    return presets(placed.layout, placed.problem) if len(placed.layout.devices) > 1 else {}


def _packed_calls(placed: Placed) -> list[tuple[OpCall, str]]:
    calls = placed.prices[Phase.DECODE].calls
    return [(call, cost.implementation) for call, cost in calls if call.device == CPU]


def _notes(plan: Plan, placed: Placed) -> list[str]:
    """What a person would otherwise wonder about."""
    notes = []
    for budget in placed.available:
        card = placed.profiles.get(budget.device)
        if card is not None and budget.total_bytes > _MORE_THAN_ALL * card.memory_bytes:
            notes.append(
                f"{budget.device} is planned with {format_bytes(budget.total_bytes)}; {card.label} has "
                f"{format_bytes(card.memory_bytes)}"
            )
        if budget.device not in placed.layout.devices:
            left = budget.capacity(workspace(plan, plan.calls, None, None))
            notes.append(
                f"{budget.device} is not used: its runtime, workspace and margin need "
                f"{format_bytes(budget.total_bytes - left)}, the budget is {format_bytes(budget.total_bytes)}"
            )
    return notes
