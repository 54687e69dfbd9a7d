"""A layout whose modules on the CPU run with what a search chose for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kbench.core import CPU, Device, OpCall, Phase, Placement, Problem

from .choice import Choice
from .cost_model import Cost, CostModel
from .layout import Layout
from .plan import Plan
from .stage import layer_of
from .streaming import Layerwise


class TunedLayout(Layout):
    """Prices modules on the CPU, and places them, with the threads and kernel parameters of their choice."""

    def __init__(
        self,
        plan: Plan,
        costs: CostModel,
        devices: Sequence[Device],
        times: Mapping[Phase, float] | None = None,
        layerwise: Layerwise | None = None,
        *,
        choices: Iterable[Choice] = (),
    ) -> None:
        chosen = [choice for choice in choices if not choice.is_usual]
        self._choices = {module: choice for choice in chosen for module in choice.group.modules}
        self._costs: dict[tuple[str, Problem], Cost] = {
            (module, problem): cost
            for module, choice in self._choices.items()
            for problem, cost in choice.costs.items()
        }
        super().__init__(plan, costs, devices, times, layerwise)

    def cost(self, call: OpCall, device: Device, threads: int | None = None) -> Cost | None:
        problem, times = self.plan.priced(call.problem)
        chosen = self._costs.get((call.module, problem)) if device == CPU and threads is None else None
        if chosen is None:
            return super().cost(call, device, threads)
        chosen = self.costs.adjusted(chosen, problem, device)
        if call.op == "moe_experts" and self._visits:
            whole = self.visits_of(layer_of(call.module), call).whole(problem.integer("tokens"))
            chosen = chosen.scaled(self.costs.share(problem, chosen.threads or 1, whole))
        return chosen if times == 1 else chosen.scaled(times)

    def _placement(self, module: str, device: Device) -> Placement:
        usual = super()._placement(module, device)
        choice = self._choices.get(module)
        if choice is None or device != CPU:
            return usual
        decode, prefill = (choice.threads[phase] for phase in (Phase.DECODE, Phase.PREFILL))
        if decode == prefill:
            return replace(usual, threads=decode, block=choice.block)
        return replace(usual, threads=None, generate_threads=decode, prefill_threads=prefill, block=choice.block)
