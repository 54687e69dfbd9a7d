"""The whole way: plan, measure, price, place, write rules, prove."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from kbench.core import CPU, Assignment, CheckBroken, Device, OverBudget, Phase, Placement, UserError
from kbench.measure import Guard, Host, host
from kbench.model import load_descriptor
from kbench.results import Record, Store, read_routing, tune_result_path, write_tune_result
from kbench.rules import assign, emit, load_rules, write_rules
from kbench.suites import Cell, run_cells

from .budget import Budget, budgets, over_budget
from .ceilings import beaten, measured_roof, stored_roof
from .choice import Choice
from .cost_model import CostModel, Roof
from .details import details, stored_sweeps
from .fields import file_stem, provenance, result_fields
from .forms import best_form
from .greedy import greedy
from .layout import Layout
from .links import stored_links
from .memory import set_aside, workspace
from .nearest import nearest
from .placed import Placed
from .placement import solve
from .plan import Key, Plan, cells, make_plan, thread_counts
from .price import price
from .profile import GpuProfile
from .prove import LoadSession, Progress, Proof, prove
from .rehearsal import rehearse
from .report import TuneReport
from .request import TuneRequest, workload
from .streaming import Layerwise, layerwise, streamings
from .tail import with_tail
from .tuned_layout import TunedLayout

# Prefill layer by layer must save this share of the workload's time: nobody has measured what it is modelled to take.
_WORTH_STREAMING = 0.05

# A GiB of a GPU's memory must save at least this share of the workload's time, or it stays free for a longer context.
_WORTH_A_GIB = 1e-3
_UNLIMITED = 1 << 62


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
    counts = thread_counts(machine.usable_cpus, request.threads)
    deadline = _deadline(request)
    guard = Guard()
    fresh = not request.remeasure
    roof: Roof | None = None

    def planned(form: TuneRequest) -> tuple[Plan, Placed]:
        nonlocal roof
        plan = plan_of(form)
        available, profiles = budgets(form, machine)
        profiles = stored_links(profiles, store, machine.host_id)
        if roof is None:
            tell("measuring the machine's ceilings", 0, 1)
            roof = measured_roof(store, counts)
        records = _measure(plan, counts, store, tell, fresh=fresh)
        if beaten(roof, records):
            roof = measured_roof(store, counts, again=True)
        records += rehearse(plan, records, counts, store, tell, fresh=fresh)
        tell("placing", 0, 1)
        costs = CostModel(records, threads=counts, profiles=profiles, roof=roof)
        return plan, place(plan, costs, available, profiles)

    request, plan, placed, forms = best_form(request, planned, lambda: time.monotonic() >= deadline)
    found = None
    if request.search is not None:
        from .parameter_search import search_parameters  # loads Optuna

        # What was needed anyway is no part of the search, and must not leave it without time.
        until = _deadline(request)
        found = search_parameters(
            placed.layout, placed.solution, store, request.search, machine, request.threads, until, tell
        )
        placed = place(plan, placed.layout.costs, placed.available, placed.profiles, found.choices)
    report = _conclude(request, plan, placed, machine, store, load_session, tell, started)
    if len(forms) > 1:
        report = replace(report, fields={**report.fields, "forms": [form.fields for form in forms]})
    if found is not None:
        report = replace(report, fields={**report.fields, "search": found.fields})
    disturbed = [f"while measuring: {warning}" for warning in guard.warnings()]
    report = replace(report, fields={**report.fields, "notes": [*report.fields["notes"], *disturbed]})
    write_tune_result(tune_result_path(Path(report.fields["rules_path"])), report.fields)
    return report


def _deadline(request: TuneRequest) -> float:
    """Of ``time.monotonic``, when no more is to be tried."""
    seconds = request.search.budget_seconds if request.search is not None else None
    return math.inf if seconds is None else time.monotonic() + seconds


def replay(request: TuneRequest, store: Store, host_id: str, threads: Iterable[int]) -> TuneReport:
    """Plans for the machine ``host_id`` from its stored records alone: no hardware, same records same answer.

    The rules are not written; ``fields["rules_path"]`` is None. Errors as for ``tune``, and UserError when the store
    lacks a record.
    """
    started = time.perf_counter()
    if request.dram_bytes is None or request.vram_bytes is None:
        raise UserError("no budgets", where="replay", accepted="vram_bytes and dram_bytes of the machine")
    records = store.find(host_id=host_id, status="ok")
    roof, counts = stored_roof(store, host_id), tuple(threads)

    def planned(form: TuneRequest) -> tuple[Plan, Placed]:
        plan = plan_of(form)
        available, profiles = budgets(form, None)
        profiles = stored_links(profiles, store, host_id)
        ops = _ops(plan)
        costs = CostModel([r for r in records if r.op in ops], threads=counts, profiles=profiles, roof=roof)
        return plan, place(plan, costs, available, profiles)

    request, plan, placed, forms = best_form(request, planned)
    fields = result_fields(request, plan, placed, host_id, Proof(reason="replayed from records"), None)
    fields |= details(
        placed.layout, placed.problem, placed.available, placed.profiles, None, stored_sweeps(store, host_id)
    )
    if len(forms) > 1:
        fields["forms"] = [form.fields for form in forms]
    fields["elapsed_s"] = time.perf_counter() - started
    assignment = placed.layout.assignment(placed.solution)
    return TuneReport(fields, assignment, emit(assignment, plan.tree, {}, prefill_threshold=placed.threshold))


def place(
    plan: Plan,
    costs: CostModel,
    available: Sequence[Budget],
    profiles: Mapping[Device, GpuProfile],
    choices: Sequence[Choice] = (),
) -> Placed:
    """The proven optimum of ``plan`` under the budgets: a pure function of its arguments.

    ``choices``: what a search chose for modules on the CPU. Where routed experts can be brought to a GPU for prefill,
    that is planned too, and the faster of the two counts.

    Raises:
        OverBudget: nothing fits.
        UserError: a call that has a price on no device.
    """
    plan = with_tail(plan, costs, [budget.device for budget in available])
    placed = _placed(plan, costs, available, profiles, choices, None)
    found = streamings(placed.layout, profiles)
    brings = layerwise(placed.layout, found)
    if brings is not None:
        with contextlib.suppress(OverBudget):  # it takes more room
            other = _placed(plan, costs, available, profiles, choices, brings)
            if other.workload_seconds < (1 - _WORTH_STREAMING) * placed.workload_seconds:
                placed = other
    return replace(placed, streaming=found)


def _placed(
    plan: Plan,
    costs: CostModel,
    available: Sequence[Budget],
    profiles: Mapping[Device, GpuProfile],
    choices: Sequence[Choice],
    brings: Layerwise | None,
) -> Placed:
    # Activations of everything, wherever it runs: what a device can need at most.
    everything = workspace(plan, plan.calls, brings, None)
    # A device that cannot even hold that is out.
    usable = [b for b in available if b.device == CPU or b.capacity(everything) > 0]
    devices = [budget.device for budget in usable]
    if brings is not None and len(devices) == 1:
        raise OverBudget("no GPU has room for the activations of a long step", where="budget")
    layout: Layout = TunedLayout(plan, costs, devices, layerwise=brings, choices=choices)
    _check_priced(layout)
    if plan.workload.objective == "balanced":
        best = solve(layout.problem([_UNLIMITED for _ in devices]))
        assert best is not None
        times = {phase: 1 / of.seconds for phase, of in price(layout, best).items()}
        layout = TunedLayout(plan, costs, devices, times, layerwise=brings, choices=choices)
    aside = set_aside(plan, len(devices) - 1, brings).total
    swapped = {budget.device: layout.swapped_bytes(budget.device) if brings else 0 for budget in usable}
    rooms = [
        budget.capacity(everything) - (aside if budget.device == CPU else swapped[budget.device]) for budget in usable
    ]
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
    routing = read_routing(request.routing) if request.routing is not None else None
    return make_plan(load_descriptor(request.model, request.quant)[0], request, wanted, routing)


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
    path = request.output or Path("kbench-rules") / f"{file_stem(request, plan.descriptor)}.yaml"
    proof = Proof(reason="not run yet")
    text = _rules_text(request, plan, placed, assignment, machine.host_id, proof)
    write_rules(path, text)
    rules = load_rules(path)
    if assign(rules, plan.tree, Placement()) != assignment:
        raise CheckBroken("the rules read back as another assignment", where=str(path))
    more = details(
        placed.layout, placed.problem, placed.available, placed.profiles, machine, stored_sweeps(store, machine.host_id)
    )
    proof = prove(request, plan, placed, rules, store, load_session, tell)
    text = _rules_text(request, plan, placed, assignment, machine.host_id, proof)
    write_rules(path, text)
    fields = {**result_fields(request, plan, placed, machine.host_id, proof, path, machine), **more, "rules": text}
    fields["created"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    fields["elapsed_s"] = time.perf_counter() - started
    return TuneReport(fields, assignment, text)


def _rules_text(
    request: TuneRequest, plan: Plan, placed: Placed, assignment: Assignment, host_id: str, proof: Proof
) -> str:
    from_where = provenance(request, plan, placed, host_id, proof)
    return emit(assignment, plan.tree, from_where, prefill_threshold=placed.threshold)


def written_report(request: TuneRequest, plan: Plan, placed: Placed, host_id: str) -> tuple[TuneReport, Path]:
    """The report of a plan for the machine ``host_id``, which is not this one, and where its rules belong."""
    assignment = placed.layout.assignment(placed.solution)
    path = request.output or Path("kbench-rules") / f"{file_stem(request, plan.descriptor)}.yaml"
    proof = Proof(reason="planned for a machine that is elsewhere")
    text = _rules_text(request, plan, placed, assignment, host_id, proof)
    return TuneReport(result_fields(request, plan, placed, host_id, proof, path), assignment, text), path
