"""The whole way: plan, measure, price, place, write rules, prove."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kbench import __version__
from kbench.core import CPU, CheckBroken, Device, OpCall, Phase, Placement, UserError, format_bytes
from kbench.measure import Guard, Host, host
from kbench.model import ModelDescriptor, load_descriptor
from kbench.results import Record, Store, tune_result_path, write_tune_result
from kbench.rules import assign, emit, load_rules, write_rules
from kbench.suites import Cell, run_cells

from .budget import Budget, budgets, over_budget
from .ceilings import beaten, measured_roof, stored_roof
from .cost_model import CostModel
from .details import details, stored_sweeps
from .greedy import greedy
from .layout import Layout, workspace_bytes
from .memory import memory, set_aside
from .nearest import nearest
from .packed import packing
from .placement import PlacementProblem, Solution, solve
from .plan import Key, Plan, cells, make_plan, thread_counts
from .presets import presets
from .price import PhasePrice, price
from .profile import GpuProfile
from .prove import LoadSession, Proof, prove
from .rehearsal import rehearse
from .report import TuneReport, modelled, op_rows, prediction, rounded
from .request import TuneRequest, workload
from .sensitivity import sensitivity

# (what is being done, done, of how many)
Progress = Callable[[str, int, int], None]

# A GiB of a GPU's memory must save at least this share of the workload's time, or it stays free for a longer context.
_WORTH_A_GIB = 1e-3
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Placed:
    """The outcome of planning, before anything is written or run."""

    layout: Layout
    problem: PlacementProblem
    solution: Solution
    greedy_seconds: float | None
    prices: Mapping[Phase, PhasePrice]
    available: Sequence[Budget]
    profiles: Mapping[Device, GpuProfile]


def tune(
    request: TuneRequest,
    store: Store,
    progress: Progress | None = None,
    *,
    load_session: LoadSession | None = None,
) -> TuneReport:
    """Measures what is missing, finds the fastest placement within the budgets, writes its rules, and runs them.

    ``load_session`` loads a real model for the proof; without it nothing is run.

    Raises:
        UserError: no such model, nonsense in the request.
        OverBudget: nothing fits; the message says what is short and what would fit.
    """
    started = time.perf_counter()
    tell = progress or (lambda what, done, total: None)
    if request.output is not None and request.output.is_dir():  # known now; measuring may take a minute
        raise UserError("a directory", where=str(request.output), accepted="--output FILE.yaml")
    machine = host()
    plan = plan_of(request)
    available, profiles = budgets(request, machine)
    counts = thread_counts(machine.usable_cpus, request.threads)
    guard = Guard()
    tell("measuring the machine's ceilings", 0, 1)
    roof = measured_roof(store, counts)
    records = _measure(plan, counts, store, tell, fresh=not request.remeasure)
    if beaten(roof, records):
        roof = measured_roof(store, counts, again=True)
    records += rehearse(plan, records, counts, store, tell, fresh=not request.remeasure)
    tell("placing", 0, 1)
    costs = CostModel(records, threads=counts, profiles=profiles, roof=roof)
    placed = place(plan, costs, available, profiles)
    report = _conclude(request, plan, placed, machine, store, load_session, tell, started)
    disturbed = [f"while measuring: {warning}" for warning in guard.warnings()]
    report = replace(report, fields={**report.fields, "notes": [*report.fields["notes"], *disturbed]})
    write_tune_result(tune_result_path(Path(report.fields["rules_path"])), report.fields)
    return report


def replay(request: TuneRequest, store: Store, host_id: str, threads: Iterable[int]) -> TuneReport:
    """Plans for the machine ``host_id`` from its stored records alone: no hardware, same records same answer.

    The rules are not written; ``fields["rules_path"]`` is None. Errors as for ``tune``, and UserError when the store
    lacks a record.
    """
    started = time.perf_counter()
    plan = plan_of(request)
    if request.dram_bytes is None or request.vram_bytes is None:
        raise UserError("no budgets", where="replay", accepted="vram_bytes and dram_bytes of the machine")
    available, profiles = budgets(request, None)
    records = store.find(host_id=host_id, status="ok")
    roof = stored_roof(store, host_id)
    costs = CostModel([r for r in records if r.op in _ops(plan)], threads=threads, profiles=profiles, roof=roof)
    placed = place(plan, costs, available, profiles)
    fields = _fields(request, plan, placed, host_id, Proof(reason="replayed from records"), None)
    fields |= details(placed.layout, placed.problem, available, profiles, None, stored_sweeps(store, host_id))
    fields["elapsed_s"] = time.perf_counter() - started
    assignment = placed.layout.assignment(placed.solution)
    return TuneReport(fields, assignment, emit(assignment, plan.tree, {}))


def place(plan: Plan, costs: CostModel, available: Sequence[Budget], profiles: Mapping[Device, GpuProfile]) -> Placed:
    """The proven optimum of ``plan`` under the budgets: a pure function of its arguments.

    Raises:
        OverBudget: nothing fits.
        UserError: a call that has a price on no device.
    """
    tokens = {phase: shape[0] for phase, shape in plan.shapes.items()}
    # Activations of everything, wherever it runs: what a device can need at most.
    everything = workspace_bytes(plan.calls, tokens, None)
    # A device that cannot even hold that is out.
    usable = [b for b in available if b.device == CPU or b.capacity(everything) > 0]
    devices = [budget.device for budget in usable]
    layout = Layout(plan, costs, devices)
    _check_priced(layout)
    if plan.workload.objective == "balanced":
        best = solve(layout.problem([_UNLIMITED for _ in devices]))
        assert best is not None
        layout = Layout(plan, costs, devices, {phase: 1 / of.seconds for phase, of in price(layout, best).items()})
    aside = set_aside(plan, len(devices) - 1).total
    rooms = [budget.capacity(everything) - (aside if budget.device == CPU else 0) for budget in usable]
    problem = layout.problem(rooms)
    free = solve(replace(problem, capacity=tuple(_UNLIMITED for _ in devices)))
    if free is not None and len(devices) > 1:
        problem = replace(problem, price=(0.0, *(_WORTH_A_GIB * free.seconds / 2**30 for _ in devices[1:])))
    solution = solve(problem)
    if solution is None:
        raise over_budget(problem, usable, everything + aside, nearest(layout, rooms))
    rival = greedy(problem)
    prices = price(layout, solution)
    return Placed(layout, problem, solution, rival.seconds if rival else None, prices, available, profiles)


def plan_of(request: TuneRequest) -> Plan:
    """The model and the workload of ``request``, lowered."""
    wanted = workload(request)
    return make_plan(load_descriptor(request.model, request.quant)[0], request, wanted)


def _ops(plan: Plan) -> set[str]:
    return {problem.op for problem in plan.problems}


def _measure(plan: Plan, counts: Sequence[int], store: Store, tell: Progress, *, fresh: bool) -> list[Record]:
    """Records of every cell; where an implementation fails, of the next best."""
    failed: set[Key] = set()
    done: dict[Key, Record] = {}
    while True:
        todo = [key for key in cells(plan, counts, failed) if key not in done]
        if not todo:
            return list(done.values())
        records = run_cells(
            [Cell(*key) for key in todo],
            store,
            progress=lambda n, total, what: tell(f"measuring {what.partition('(')[0]}", n, total),
            fresh=fresh,
            suite="tune",
        )
        by_case = {(record.key, record.implementation): record for record in records}
        for key in todo:
            cell = Cell(*key)
            record = by_case.get((cell.key, cell.implementation))
            if record is not None and record.status == "ok":
                done[key] = record
            else:
                failed.add(key)


def _check_priced(layout: Layout) -> None:
    missing = [
        call.problem.key
        for phase in Phase
        for call in layout.plan.calls[phase]
        if all(layout.cost(call, device) is None for device in layout.devices)
    ]
    if missing:
        names = ", ".join(list(dict.fromkeys(missing))[:3])
        raise UserError(
            f"{len(set(missing))} problems without a price, e.g. {names}",
            where=layout.plan.descriptor.name,
            todo="run kbench tune on this machine, or lift --threads",
        )


def _conclude(
    request: TuneRequest,
    plan: Plan,
    placed: Placed,
    machine: Host,
    store: Store,
    load_session: LoadSession | None,
    tell: Progress,
    started: float,
) -> TuneReport:
    """Writes the rules, reads them back, runs them."""
    assignment = placed.layout.assignment(placed.solution)
    path = request.output or Path("kbench-rules") / f"{_file_stem(request, plan.descriptor)}.yaml"
    proof = Proof(reason="not run yet")
    text = emit(assignment, plan.tree, _provenance(request, plan, placed, machine.host_id, proof))
    write_rules(path, text)
    rules = load_rules(path)
    if assign(rules, plan.tree, Placement()) != assignment:
        raise CheckBroken("the rules read back as another assignment", where=str(path))
    more = details(
        placed.layout, placed.problem, placed.available, placed.profiles, machine, stored_sweeps(store, machine.host_id)
    )
    tell("running the model under the rules", 0, 1)
    proof = prove(request, plan.descriptor, plan.workload, rules, assignment, store, load_session)
    text = emit(assignment, plan.tree, _provenance(request, plan, placed, machine.host_id, proof))
    write_rules(path, text)
    fields = {**_fields(request, plan, placed, machine.host_id, proof, path, machine), **more, "rules": text}
    fields["created"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    fields["elapsed_s"] = time.perf_counter() - started
    return TuneReport(fields, assignment, text)


def written_report(request: TuneRequest, plan: Plan, placed: Placed, host_id: str) -> tuple[TuneReport, Path]:
    """The report of a plan for the machine ``host_id``, which is not this one, and where its rules belong."""
    assignment = placed.layout.assignment(placed.solution)
    path = request.output or Path("kbench-rules") / f"{_file_stem(request, plan.descriptor)}.yaml"
    proof = Proof(reason="planned for a machine that is elsewhere")
    text = emit(assignment, plan.tree, _provenance(request, plan, placed, host_id, proof))
    return TuneReport(_fields(request, plan, placed, host_id, proof, path), assignment, text), path


def _file_stem(request: TuneRequest, descriptor: ModelDescriptor) -> str:
    """The model file's name, or the model's own: every config.json is called that."""
    path = Path(request.model)
    name = path.stem if path.is_file() and path.suffix.lower() != ".json" else descriptor.name
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80].lower() or "model"


def model_hash(descriptor: ModelDescriptor) -> str:
    """Of the architecture and every tensor's name, shape and type: two files that hash alike are placed alike."""
    lines = [descriptor.architecture, *(f"{t.name} {t.shape} {t.quant}" for t in descriptor.tensors)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _provenance(request: TuneRequest, plan: Plan, placed: Placed, host_id: str, proof: Proof) -> dict[str, Any]:
    """Where the rules came from; numbers rounded to what they are worth."""
    predicted = prediction(placed.prices, placed.layout)
    measured = _measured(proof)
    return {
        "model": f"{plan.descriptor.name} {plan.descriptor.quant}",
        "model_sha": model_hash(plan.descriptor),
        "host_id": host_id,
        "kbench_version": __version__,
        "budgets": {str(b.device): b.total_bytes for b in placed.available},
        "workload": _workload(plan),
        "predicted": rounded(predicted),
        "measured": rounded(measured) if measured else proof.reason,
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
        "objective": wanted.objective,
    }


def _measured(proof: Proof) -> dict[str, Any] | None:
    if proof.decode_tokens_per_s is None:
        return None
    return {
        "decode_tokens_per_s": proof.decode_tokens_per_s,
        "prefill_tokens_per_s": proof.prefill_tokens_per_s,
        "decode_interval": list(proof.decode_interval or ()),
    }


def _fields(
    request: TuneRequest,
    plan: Plan,
    placed: Placed,
    host_id: str,
    proof: Proof,
    path: Path | None,
    machine: Host | None = None,
) -> dict[str, Any]:
    """The JSON object, in the order in which it is read."""
    descriptor, predicted, measured = plan.descriptor, prediction(placed.prices, placed.layout), _measured(proof)
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
        "packing": asdict(packing(_packed_calls(placed), placed.layout.costs.packed)),
        "predicted": predicted,
        "measured": measured,
        "measured_reason": proof.reason or None,
        "error": error,
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


def _rivals(placed: Placed) -> dict[str, Solution]:
    """What other tools would do with the first GPU."""
    return presets(placed.layout, placed.problem) if len(placed.layout.devices) > 1 else {}


def _packed_calls(placed: Placed) -> list[tuple[OpCall, str]]:
    calls = placed.prices[Phase.DECODE].calls
    return [(call, cost.implementation) for call, cost in calls if call.device == CPU]


def _notes(plan: Plan, placed: Placed) -> list[str]:
    """What a person would otherwise wonder about."""
    notes = []
    tokens = {phase: shape[0] for phase, shape in plan.shapes.items()}
    for budget in placed.available:
        if budget.device not in placed.layout.devices:
            left = budget.capacity(workspace_bytes(plan.calls, tokens, None))
            notes.append(
                f"{budget.device} is not used: its runtime, workspace and margin need "
                f"{format_bytes(budget.total_bytes - left)}, the budget is {format_bytes(budget.total_bytes)}"
            )
    return notes
