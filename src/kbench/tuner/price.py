"""The time of a lowered model: what the engine would run, call by call, transfers included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kbench.core import Assignment, Device, OpCall, Phase
from kbench.model import lower

from .cost_model import Cost
from .layout import Layout
from .placement import Solution
from .schedule import makespan, steps_of
from .vram_curve import phase_seconds

_ELEMENT_BYTES = 4

# Runs differ by more than the samples of one run show: where its pages lie, what else the memory serves. Beyond the
# quartiles of the samples, 34 of the 36 runs that it was set from lay within this share (docs/accuracy.md). Each of
# those was one process that took turns with the engine by the quarter of a second. A tune's check is one process too:
# finer turns take the neighbours away, not where pages lie, which is drawn once for either side.
RUN_TO_RUN = 0.12


@dataclass(frozen=True, slots=True)
class PhasePrice:
    """Seconds of one step with its interval, and the priced calls. ``source`` is modelled if anything in it is."""

    seconds: float
    low: float
    high: float
    calls: tuple[tuple[OpCall, Cost], ...]

    @property
    def source(self) -> str:
        return "modelled" if any(cost.source == "modelled" for _, cost in self.calls) else "measured"

    def scaled(self, factor: float) -> PhasePrice:
        """The same calls, in another time together."""
        return replace(self, seconds=self.seconds * factor, low=self.low * factor, high=self.high * factor)


def price(layout: Layout, solution: Solution) -> dict[Phase, PhasePrice]:
    """One decoded token and one prefill step under ``solution``, from the same lowering that the engine runs."""
    plan = layout.plan
    assignment = layout.assignment(solution)
    prices = {
        phase: price_calls(
            lower(plan.descriptor, assignment, phase, tokens, context, kv=plan.kv, resolve=layout.resolve),
            _priced(layout, phase, assignment),
        )
        for phase, (tokens, context) in plan.shapes.items()
    }
    if not any(column.split for column in solution.columns):
        return prices
    # Of layers that wait for the slower of two sides by chance, the mean is not what the means of both sides take.
    means = phase_seconds(layout, solution)
    return {phase: priced.scaled(means[phase] / priced.seconds) for phase, priced in prices.items()}


def _priced(layout: Layout, phase: Phase, assignment: Assignment) -> Callable[[OpCall], Cost]:
    def cost(call: OpCall) -> Cost:
        # Placed on the host, and run elsewhere in prefill.
        away = call.op == "moe_experts" and call.device != assignment[call.module].generate_device
        away = away and "experts" not in call.attrs
        return layout.brought(call, call.device) if away and phase is Phase.PREFILL else cost_of(call, layout)

    return cost


def price_calls(calls: Sequence[OpCall], cost: Callable[[OpCall], Cost]) -> PhasePrice:
    """The schedule of ``calls`` at their medians, and with every call at its lower and its upper quartile, each end
    further out by what one run differs from the next.

    Moving all calls to the same side at once is wider than independent noise would be: neighbours and clock
    frequencies move all of them together.
    """
    priced = [(call, cost(call)) for call in calls]

    def total(seconds: Callable[[Cost], float]) -> float:
        costs = {id(call): seconds(cost) for call, cost in priced}
        return makespan(steps_of(calls, lambda call: costs[id(call)]), _no_transfer)

    low, high = total(lambda cost: cost.low) * (1 - RUN_TO_RUN), total(lambda cost: cost.high) * (1 + RUN_TO_RUN)
    return PhasePrice(total(lambda cost: cost.seconds), low, high, tuple(priced))


def cost_of(call: OpCall, layout: Layout) -> Cost:
    """What ``call`` costs where it was placed."""
    if call.op == "transfer":
        n_bytes = call.problem.integer("d") * call.problem.integer("tokens") * _ELEMENT_BYTES
        return layout.costs.transfer(n_bytes, *(Device.parse(call.problem.text(end)) for end in ("src", "dst")))
    found = layout.cost(call, call.device)
    if found is None:
        raise ValueError(f"{call.module}: {call.problem.key} has no price on {call.device}")
    return found


def _no_transfer(value: str, src: Device, dst: Device) -> float:
    raise ValueError(f"{value} is needed on {dst} and lies on {src}: lowering inserts the transfer")
