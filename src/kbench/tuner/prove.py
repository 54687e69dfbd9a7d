"""The proof: a real model runs under the emitted rules, and what it did is stored beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbench.core import CPU, KbenchError
from kbench.results import Store
from kbench.rules import RuleSet

from .check import CHECKED, PlanCheck, check_key, known_checks, measured_rates, predicted_rates
from .placed import Placed
from .plan import Plan
from .request import TuneRequest

# Loads a model for running, as the request says. Any: the engine's session, of a package not known here.
LoadSession = Callable[[Path, RuleSet, TuneRequest], Any]

# (what is being done, done, of how many)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Proof:
    """Tokens/s and when they were measured, or the ``reason`` why there are none.

    ``predicted``: of the same steps; ``in_turns`` with them, else it is what chose the plan. ``stored``: all of it was
    known before.
    """

    measured: Mapping[str, Any] | None = None
    predicted: Mapping[str, Any] | None = None
    in_turns: bool = False
    stored: bool = False
    created: str = ""
    reason: str = ""


def prove(
    request: TuneRequest,
    plan: Plan,
    placed: Placed,
    rules: RuleSet,
    store: Store,
    load_session: LoadSession | None,
    tell: Progress,
) -> Proof:
    """Runs steps of the prompt and tokens around the middle of the answer, which are what the plan's prices are of, in
    turns with a prediction of them. Each phase goes to the store when it is finished; what is there, of these rules by
    this version of kbench, is not run again unless the request says so.
    """
    path = Path(request.model)
    if not path.is_file():
        return Proof(reason="no weights: an embedded descriptor was planned; give a GGUF file to run it")
    assignment = placed.layout.assignment(placed.solution)
    if any(placement.generate_device != CPU or placement.gpu_experts for placement in assignment.values()):
        return Proof(reason="the rules use a GPU whose times are modelled: nothing to run them on here")
    if not request.prove or load_session is None:
        return Proof(reason="not asked for")
    if request.batch > 1:
        return Proof(reason="a batch was planned; what runs here is one sequence")
    key = check_key(request, plan, placed)
    found = {} if request.remeasure else known_checks(key, store)
    missing = [phase for phase in CHECKED if phase not in found]
    if missing:
        tell("loading the model", 0, len(CHECKED))
        try:
            session = load_session(path, rules, request)
        except KbenchError as error:
            return Proof(reason=f"the engine did not load it: {error.message}")
        check = PlanCheck(plan, placed, session)
        for phase in missing:
            tell(f"running {phase} in turns with its prediction", CHECKED.index(phase), len(CHECKED))
            try:
                record = check.record(phase, key, request.threads)
            except KbenchError as error:
                return Proof(reason=f"the engine did not run it: {error.message}")
            store.append(record, suite="tune")
            found[phase] = record
    return Proof(
        measured_rates(found, plan.workload),
        predicted_rates(found, placed),
        in_turns=all(record.extra.get("in_turns") is True for record in found.values()),
        stored=not missing,
        created=min(record.created for record in found.values()),
    )
