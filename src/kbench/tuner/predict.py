"""What single steps of a model would take on this CPU alone, whatever their tokens and context.

``tune`` predicts the two steps that stand for a workload. This predicts any step, by the same lowering, the same
measurements and the same prices, so that predictions can be held against runs at many depths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kbench.core import AUTO, CPU, OpCall, Phase, Problem, UserError
from kbench.measure import StoppingRule
from kbench.model import ModelDescriptor, lower
from kbench.results import Record
from kbench.suites import Cell, Row

from .cost_model import Cost, CostModel
from .plan import cells_of, implementations_of
from .price import PhasePrice, price_calls
from .rehearsal import rehearsed


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One run of a model: ``tokens`` new ones; ``context`` tokens are cached at its end, the new ones included."""

    phase: Phase
    tokens: int
    context: int


class Steps:
    """Steps of one model, to be measured and priced as often as wanted: weights of what runs in place are kept."""

    def __init__(
        self,
        descriptor: ModelDescriptor,
        steps: Sequence[ModelStep],
        capacity: int,
        kv: str = "f16",
        runs: Callable[[OpCall], OpCall] | None = None,
    ) -> None:
        """``capacity``: slots of the caches. ``runs``: a call with the implementation, and the threads, that it runs
        with in place; None: the best implementation here, with as many threads as are asked for."""
        self.steps, self._capacity, self._runs = tuple(steps), capacity, runs or _at_its_best
        self._calls = {
            step: lower(
                descriptor, {}, step.phase, step.tokens, step.context, kv=kv, resolve=lambda problem, device: AUTO
            )
            for step in self.steps
        }
        self._rows: dict[tuple[Phase, int], Row | None] = {}

    def make_rows(self) -> None:
        """Makes the weights of what runs in place, where they are not made yet."""
        for step in self.steps:
            self._row(step)

    def in_place(self, step: ModelStep, threads: int, stopping: StoppingRule | None = None) -> list[Record]:
        """Records of those calls of ``step`` that are timed in place, measured now and not checked."""
        row = self._row(step)
        return row.records(threads, step.context, stopping) if row else []

    def loose_cells(self, step: ModelStep, threads: int) -> list[Cell]:
        """``loose_problems``, to be timed one by one."""
        return [Cell(*key) for key in cells_of(self.loose_problems(step), (threads,))]

    def loose_problems(self, step: ModelStep) -> list[Problem]:
        """Those of all other calls of ``step``, each once."""
        row = self._row(step)
        known = set(row.problems(step.context) if row else ())
        return [
            problem for problem in dict.fromkeys(call.problem for call in self._calls[step]) if problem not in known
        ]

    def _row(self, step: ModelStep) -> Row | None:
        kind = (step.phase, step.tokens)
        if kind not in self._rows:
            like = next(filter(None, self._rows.values()), None)
            chain = rehearsed([self._runs(call) for call in self._calls[step]], lambda problem: None)
            self._rows[kind] = Row(chain, step.tokens, self._capacity, like) if chain else None
        return self._rows[kind]

    def price(self, step: ModelStep, costs: CostModel, threads: int) -> PhasePrice:
        """Of ``step`` with ``threads`` threads.

        Raises:
            UserError: a call that ``costs`` have no price for.
        """

        def cost(call: OpCall) -> Cost:
            found = costs.cost(call.problem, CPU, threads)
            if found is None:
                raise UserError(f"no price for {call.problem.key}", where=call.module, todo="measure its cell")
            return found

        return price_calls(self._calls[step], cost)


def _at_its_best(call: OpCall) -> OpCall:
    return replace(call, implementation=next(iter(implementations_of(call.problem)), call.implementation))
