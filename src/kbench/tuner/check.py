"""A placed plan held against the engine: the steps that it was priced by run, in turns with a prediction of their own.

What chose the plan are prices of minutes or weeks ago; they are not touched. What is held against the run is predicted
anew, from samples that take turns with the engine's steps::

    run in place | step | some of the other calls | run in place | step | ...

A step is one of the plan's: a whole chunk of the prompt at the mean depth of its chunks, a token half way through the
answer. Each phase is one record, with what was predicted beside what was measured: a check that was stopped goes on
where it was, and one that is known is not run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import psutil

from kbench.core import CPU, KbenchError, OpCall, Phase
from kbench.measure import host, median
from kbench.model import kv_bytes_per_token
from kbench.results import Record, Store, current_commit
from kbench.rules import emit
from kbench.suites import Cell, version_of

from .beside import beside
from .ceilings import renewed_roof
from .cost_model import MEASURED
from .engine_turns import LEAST_STEPS, EngineTurns, SteppingSession
from .model_hash import model_hash
from .placed import Placed
from .plan import Plan
from .predict import ModelStep, Steps
from .price import PhasePrice, price
from .proxy import proxy
from .rehearsal import CAPACITY, MAX_BYTES
from .renewed_costs import RenewedCosts
from .report import prediction
from .request import TuneRequest, Workload

# Phases in the order in which they are run: a cache with a window cannot go back to the prompt.
CHECKED = (Phase.PREFILL, Phase.DECODE)
ENGINE = "engine"

# Steps of the engine, some seconds of them; but so many seconds, of both sides together, at the most.
_STEPS = {Phase.PREFILL: 8, Phase.DECODE: 48}
_MAX_SECONDS = 10.0
# Tokens that are decoded one after the other before it is gone back: attention at the last reads little more than at
# the first, and what a cache with a window keeps is enough.
_GENERATED = 16
# Left free beside what is made for the prediction: the probes' buffer, copies of a cell.
_SPARE_BYTES = 1 << 30


def check_key(request: TuneRequest, plan: Plan, placed: Placed) -> str:
    """What a check is of: the model, the rules, how they are run, the kernels that run."""
    rules = emit(placed.layout.assignment(placed.solution), plan.tree, {}, prefill_threshold=placed.threshold)
    names = sorted({cost.implementation for of in placed.prices.values() for _, cost in of.calls})
    wanted = plan.workload
    lines = [
        model_hash(plan.descriptor),
        rules,
        f"{plan.kv} {plan.context} {request.chunk} {wanted.prompt_tokens} {wanted.gen_tokens} {request.threads}",
        *(f"{name} {version_of(name)}" for name in names),
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def known_checks(key: str, store: Store) -> dict[Phase, Record]:
    """What ``store`` has of the check ``key``, by this version of kbench on this machine."""
    found = store.find(host_id=host().host_id, implementation=ENGINE, status="ok", commit=current_commit())
    return {Phase(r.op): r for r in found if r.op in list(Phase) and r.extra.get("check") == key and _is_whole(r)}


def _is_whole(record: Record) -> bool:
    predicted, tail = record.extra.get("predicted_seconds"), record.extra.get("tail_seconds")
    return (
        bool(record.samples)
        and all(isinstance(numbers, list) and all(_is_time(n) for n in numbers) for numbers in (predicted, tail))
        and len(predicted or ()) == 3
    )


def _is_time(number: object) -> bool:
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf


def depth_of(phase: Phase, wanted: Workload) -> int:
    """Tokens that are cached when the steps of ``phase`` begin, so that their mean context is what was priced."""
    if phase is Phase.PREFILL:
        return wanted.prefill_context - wanted.chunk
    return wanted.decode_context - (_generated(wanted) + 1) // 2


def _generated(wanted: Workload) -> int:
    return min(_GENERATED, wanted.gen_tokens, wanted.chunk)


class PlanCheck:
    """The steps of a placed plan, by a session that was loaded under its rules and, at the same time, predicted."""

    def __init__(self, plan: Plan, placed: Placed, session: SteppingSession) -> None:
        self._plan, self._placed, self._session = plan, placed, session
        wanted = plan.workload
        count = wanted.prompt_tokens + wanted.gen_tokens
        self._ids = np.random.default_rng(0).integers(0, plan.descriptor.vocab, count)
        self._steps = self._made()

    def _made(self) -> Steps | None:
        """What runs in place, as in the plan; None where the memory does not take it."""
        plan = self._plan
        capacity = max(min(plan.context, CAPACITY), *(context for _, context in plan.shapes.values()))
        kept = min(MAX_BYTES, plan.descriptor.n_bytes) + capacity * kv_bytes_per_token(plan.descriptor, plan.kv)
        if len(Phase) * kept + _SPARE_BYTES > _free_bytes():
            return None
        try:
            made = Steps(plan.descriptor, [self._step(phase) for phase in CHECKED], capacity, plan.kv, self._as_placed)
            made.make_rows()
        except (KbenchError, ValueError, MemoryError):
            return None  # what chose the plan is all the prediction that there is
        return made

    def _as_placed(self, call: OpCall) -> OpCall:
        cost = self._placed.layout.cost(call, CPU)
        if cost is None:
            return call
        return replace(call, implementation=cost.implementation, threads=self._priced_at(cost.threads))

    def _step(self, phase: Phase) -> ModelStep:
        return ModelStep(phase, *self._plan.shapes[phase])

    def record(self, phase: Phase, key: str, threads: int | None) -> Record:
        """Runs the steps of ``phase``; seconds of a step, and of the prompt's last one where that is partly filled.

        Raises:
            KbenchError: what the session raises.
        """
        wanted = self._plan.workload
        depth = depth_of(phase, wanted)
        self._go_to(depth)
        ids = self._ids[depth : depth + (wanted.chunk if phase is Phase.PREFILL else _generated(wanted))]
        turns = EngineTurns(self._session, ids, phase, depth, _STEPS[phase], max_seconds=_MAX_SECONDS)
        renewed = self._in_turns(phase, turns)
        predicted = self._predicted(phase, renewed)
        tokens = len(ids) if phase is Phase.PREFILL else 1
        descriptor = self._plan.descriptor
        return Record.make(
            (str(phase), {"model": descriptor.name, "quant": descriptor.quant, "tokens": tokens, "depth": depth}),
            ENGINE,
            threads=threads,
            result=turns.seconds,
            extra={
                "check": key,
                "in_turns": bool(renewed),
                "predicted_seconds": [predicted.seconds, predicted.low, predicted.high],
                "tail_seconds": self._tail() if phase is Phase.PREFILL else [],
            },
        )

    def _priced_at(self, threads: int | None) -> int:
        """A count that only a search has tried stands on the usual one's price."""
        known = self._placed.layout.costs.threads
        return threads if threads is not None and threads in known else known[-1]

    def _in_turns(self, phase: Phase, turns: EngineTurns) -> list[Record]:
        """Records of the phase's calls, taken while the engine has its ``turns``."""
        if self._steps is not None:
            step = self._step(phase)
            loose = set(self._steps.loose_problems(step))
            cells = [
                Cell(proxy(call.problem)[0], cost.implementation, self._priced_at(cost.threads))
                for call, cost in self._placed.prices[phase].calls
                if cost.source == MEASURED and call.problem in loose
            ]
            # The engine has one pool, as large as any call of either phase wants it.
            used = [self._priced_at(cost.threads) for of in self._placed.prices.values() for _, cost in of.calls]
            with contextlib.suppress(ValueError, MemoryError):  # as when the plan was made: cells price these calls
                found = beside(step, self._steps, turns, max(used), list(dict.fromkeys(cells)))
                return [record for record in found if record.status == "ok"]
        turns.finish()
        return []

    def _predicted(self, phase: Phase, renewed: list[Record]) -> PhasePrice:
        layout = self._placed.layout
        if not renewed:
            return self._placed.prices[phase]
        apart = {record.threads for record in renewed if record.threads and not record.extra.get("in_place")}
        roof = renewed_roof(layout.costs.roof, apart) if apart else layout.costs.roof  # it bounds nothing that ran
        costs = RenewedCosts(layout.costs, renewed, roof)
        return price(layout.priced_by(costs), self._placed.solution)[phase]

    def _tail(self) -> list[float]:
        """Seconds of the prompt's last step, where it is partly filled."""
        tokens = self._plan.workload.tail_tokens
        if not tokens:
            return []
        depth = self._plan.workload.prompt_tokens - tokens
        self._go_to(depth)
        turns = EngineTurns(self._session, self._ids[depth : depth + tokens], Phase.PREFILL, depth, LEAST_STEPS)
        turns.finish()
        return turns.seconds

    def _go_to(self, depth: int) -> None:
        if self._session.position > depth:
            self._session.truncate(depth)
        elif self._session.position < depth:
            self._session.prefill(self._ids[self._session.position : depth])


def _free_bytes() -> int:
    """Memory that this process may still take."""
    resident = int(psutil.Process().memory_info().rss)
    return min(int(psutil.virtual_memory().available), host().usable_memory_bytes - resident)


def measured_rates(records: Mapping[Phase, Record], wanted: Workload) -> dict[str, Any]:
    """Tokens/s of both phases, each by the median of its steps; of decode the quartiles too, the slower first."""
    step, tail = median(records[Phase.PREFILL].samples), records[Phase.PREFILL].extra["tail_seconds"]
    prompt = step * (wanted.prompt_tokens // wanted.chunk) + (median(tail) if tail else 0.0)
    decode = records[Phase.DECODE].samples
    slow, middle, fast = (1 / float(seconds) for seconds in np.quantile(decode, (0.75, 0.5, 0.25)))
    return {
        "decode_tokens_per_s": middle,
        "prefill_tokens_per_s": wanted.prompt_tokens / prompt,
        "decode_interval": [slow, fast],
    }


def predicted_rates(records: Mapping[Phase, Record], placed: Placed) -> dict[str, Any]:
    """What was predicted of the steps that ran, as the plan's own prediction reads."""
    prices = {}
    for phase, record in records.items():
        seconds, low, high = record.extra["predicted_seconds"]
        prices[phase] = PhasePrice(seconds, low, high, ())
    source = prediction(placed.prices, placed.layout)["source"]
    return {**prediction(prices, placed.layout), "source": source}
