"""Planning for a machine that is elsewhere: from its exported profile, and from its records where there are any."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kbench.core import Device
from kbench.measure import HostProfile, read_host_profile
from kbench.results import Store, tune_result_path, write_tune_result
from kbench.rules import write_rules

from .budget import budgets, profile_of
from .cost_model import CostModel, Roof
from .details import details, stored_sweeps
from .forms import best_form
from .links import with_links
from .placed import Placed
from .plan import Plan, thread_counts
from .report import TuneReport
from .request import TuneRequest
from .tune import place, plan_of, written_report


def tune_elsewhere(request: TuneRequest, store: Store, profile: Path) -> TuneReport:
    """The fastest placement on the machine in the file ``profile``. Nothing is measured and nothing is run; what has no
    record of that machine is priced at a share of its measured limits, and marked modelled.

    Raises:
        UserError: no such file or model, nonsense in the request.
        OverBudget: nothing fits; the message says what is short and what would fit.
    """
    started = time.perf_counter()
    away = read_host_profile(profile)
    request = _with_its_memory(request, away)
    names = {str(Device("cuda", index)): name for index, (name, _) in enumerate(away.gpus)}
    links = {costs.device: (names.get(costs.device, ""), costs) for costs in away.links}
    counts = thread_counts(away.usable_cpus, request.threads)
    roof = Roof(away.bandwidth, away.peak)

    def planned(form: TuneRequest) -> tuple[Plan, Placed]:
        plan = plan_of(form)
        available, gpus = budgets(form, None)
        gpus = with_links(gpus, links)
        ops = {problem.op for problem in plan.problems}
        records = [record for record in store.find(host_id=away.host_id, status="ok") if record.op in ops]
        costs = CostModel(records, threads=counts, profiles=gpus, roof=roof, assumes=True)
        return plan, place(plan, costs, available, gpus)

    request, plan, placed, forms = best_form(request, planned)
    report, path = written_report(request, plan, placed, away.host_id)
    write_rules(path, report.rules_text)
    more = details(
        placed.layout, placed.problem, placed.available, placed.profiles, None, stored_sweeps(store, away.host_id)
    )
    fields: dict[str, Any] = {**report.fields, **more, "host": {"cpu": away.cpu, "cores": away.usable_cpus}}
    if len(forms) > 1:
        fields["forms"] = [form.fields for form in forms]
    fields |= {"rules": report.rules_text, "elapsed_s": time.perf_counter() - started}
    write_tune_result(tune_result_path(path), fields)
    return TuneReport(fields, report.assignment, report.rules_text)


def _with_its_memory(request: TuneRequest, away: HostProfile) -> TuneRequest:
    """Budgets that are not given are those of the machine, and so are its GPUs' profiles."""
    if request.dram_bytes is None:
        request = replace(request, dram_bytes=away.memory_bytes)
    if request.vram_bytes is not None:
        return request
    vram = {Device("cuda", index): n_bytes for index, (_, n_bytes) in enumerate(away.gpus)}
    names = ",".join(profile_of(name) or request.gpu.split(",")[0] for name, _ in away.gpus)
    return replace(request, vram_bytes=vram or 0, gpu=names or request.gpu)
