"""A layer whose routed experts are split, where an engine can do that: the columns that a layout adds for it, what it
costs, and how rules say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kbench.core import AUTO, Device, GpuExperts, OpCall, Phase, Placement, Problem

from .availability import GPU_IMPLEMENTATION
from .cost_model import Cost
from .expert_groups import Fork, group_bounds, outcomes
from .schedule import Step, makespan
from .stage import Stage, layer_of
from .visits import Part

if TYPE_CHECKING:
    from .layout import Layout

# A layer's routed experts that lie on a GPU while the others lie on the host: how many, and the GPU's index.
Split = tuple[int, int]
# With this chance, the host's part and the GPU's take so many seconds.
Branch = tuple[float, float, float]
_HOST = 0


def experts_unit(stage: Stage) -> int | None:
    """The unit of the routed experts."""
    return next((index for index, unit in enumerate(stage.units) if unit.kind == "routed experts"), None)


class SplitLayer:
    """Prices splits of ``layout``'s stages; schedules are run once for stages of the same shapes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._forks: dict[object, Fork] = {}
        self._known: dict[object, list[Branch]] = {}

    def splits(self, stage: Stage, chosen: Sequence[int], allowed: Sequence[Sequence[int]]) -> Iterator[Split]:
        """Ways to split the experts of a stage whose units are on ``chosen``: with the GPU that the stage uses already,
        with each where it uses none."""
        unit = experts_unit(stage)
        if unit is None or chosen[unit] != _HOST:
            return
        used = {device for device in chosen if device != _HOST}
        for gpu in allowed[unit]:
            if gpu != _HOST and used <= {gpu}:
                experts = self._experts_call(stage, Phase.DECODE).problem.integer("experts")
                yield from ((bound, gpu) for bound in group_bounds(experts))

    def seconds(self, stage: Stage, chosen: Sequence[int], split: Split, entry: int, phase: Phase) -> float:
        """Of one step of ``phase``, on average."""
        fork = self._fork(stage, chosen, split[1], entry, phase)
        return sum(chance * fork.seconds(host, gpu) for chance, host, gpu in self._branches(stage, split, phase))

    def place(self, stage: Stage, chosen: Sequence[int], split: Split, placed: dict[str, Placement]) -> None:
        """Puts the most visited experts of a layer that is ``placed`` on their GPU, and the sum of the two parts where
        it is wanted."""
        layout = self._layout
        calls = layout.calls_of(stage, Phase.DECODE)
        call = next(call for call, _ in calls if call.op == "moe_experts")
        (on_gpu, gpu), visits = split, layout.visits_of(stage.name, call)
        part = GpuExperts(tuple(sorted(visits.order[:on_gpu])), layout.devices[gpu], GPU_IMPLEMENTATION)
        placed[call.module] = replace(placed[call.module], gpu_experts=part)
        reader = next(unit for other, unit in calls if call.outputs[0].name in other.inputs)
        device = layout.devices[chosen[reader]]
        placed.setdefault(call.module.rpartition(".")[0], Placement(device, AUTO, device, AUTO))

    def cost(self, call: OpCall, device: Device, threads: int | None = None) -> Cost | None:
        """What a part of a layer's experts, ``call`` as lowering has it, takes on ``device`` on average."""
        layout, masked, part = self._layout, call.attrs.get("masked"), call.attrs["experts"]
        moe = layout.plan.descriptor.moe
        assert moe is not None and isinstance(part, tuple)
        whole = replace(call, problem=call.problem.replace(experts=moe.experts))
        visits, tokens = layout.visits_of(layer_of(call.module), whole), whole.problem.integer("tokens")
        n = layout.threads[call.module] if threads is None else threads
        costs = [
            (o.chance, layout.costs.part(whole.problem, device, n, o.gpu if masked else o.host))
            for o in outcomes(visits, len(part) if masked else moe.experts - len(part), tokens)
        ]
        known = [(chance, cost) for chance, cost in costs if cost is not None]
        if not known:
            return None
        return replace(
            known[0][1],
            seconds=sum(chance * cost.seconds for chance, cost in known),
            low=sum(chance * cost.low for chance, cost in known),
            high=sum(chance * cost.high for chance, cost in known),
        )

    def _branches(self, stage: Stage, split: Split, phase: Phase) -> list[Branch]:
        """The outcomes of a step's visits, in seconds."""
        key = stage.start, split, phase
        if key not in self._known:
            call = self._experts_call(stage, phase)
            visits = self._layout.visits_of(stage.name, call)
            self._known[key] = [
                (o.chance, self._part_cost(call, _HOST, o.host).seconds, self._part_cost(call, split[1], o.gpu).seconds)
                for o in outcomes(visits, split[0], call.problem.integer("tokens"))
                if o.chance
            ]
        return self._known[key]

    def _part_cost(self, call: OpCall, device: int, part: Part) -> Cost:
        """Of a part of the experts of ``call``."""
        layout = self._layout
        cost = layout.costs.part(call.problem, layout.devices[device], layout.threads[call.module], part)
        assert cost is not None  # both sides were allowed
        return cost

    def _experts_call(self, stage: Stage, phase: Phase) -> OpCall:
        return next(call for call, _ in self._layout.calls_of(stage, phase) if call.op == "moe_experts")

    def _fork(self, stage: Stage, chosen: Sequence[int], gpu: int, entry: int, phase: Phase) -> Fork:
        key = (self._layout.shape_of(stage), tuple(chosen), gpu, entry, phase)
        if key not in self._forks:

            def run(host: float, device: float) -> float:
                return self._makespan(stage, chosen, gpu, entry, phase, host, device)

            self._forks[key] = Fork.of(run)
        return self._forks[key]

    def _makespan(
        self,
        stage: Stage,
        chosen: Sequence[int],
        gpu: int,
        entry: int,
        phase: Phase,
        host: float,
        device: float,
    ) -> float:
        """The schedule with an experts' part of so many seconds on either side."""
        layout = self._layout
        steps: list[Step] = []
        joined: tuple[str, ...] = ()  # what each side made, until somebody wants the sum
        routed_on = layout.devices[chosen[0]]
        prices = layout.call_seconds(stage, phase)
        for (call, unit), by_device in zip(layout.calls_of(stage, phase), prices, strict=True):
            where = layout.devices[chosen[unit]]
            outputs = tuple(value.name for value in call.outputs)
            if call.op == "moe_router":
                routed_on = where
            if call.op == "moe_experts":
                x, *route = call.inputs
                mapped = tuple(f"{name}|{layout.devices[_HOST]}" for name in route)
                counts = {name: call.problem.integer(name) for name in ("experts", "top_k", "tokens")}
                seconds = self._seconds(Problem.make("expert_map", here=counts["experts"], **counts), routed_on, call)
                steps.append(Step(routed_on, seconds, tuple(route), mapped))
                joined = tuple(f"{outputs[0]}|{at}" for at in (layout.devices[_HOST], layout.devices[gpu]))
                steps.append(Step(layout.devices[_HOST], host, (x, *mapped), joined[:1]))
                steps.append(Step(layout.devices[gpu], device, call.inputs, joined[1:]))
                continue
            if joined and joined[0].partition("|")[0] in call.inputs:
                # Not before: a GPU works in order, and would wait for the host instead of running shared experts.
                add = Problem.make("add", d=layout.plan.descriptor.d, tokens=call.problem.integer("tokens"))
                steps.append(Step(where, self._seconds(add, where, call), joined, (joined[0].partition("|")[0],)))
                joined = ()
            seconds_there = by_device[chosen[unit]]
            assert seconds_there is not None
            steps.append(Step(where, seconds_there, call.inputs, outputs))
        present = {stage.entry: layout.devices[entry]} if stage.entry else {}
        return makespan(steps, layout.transfer_seconds(phase), present)

    def _seconds(self, problem: Problem, device: Device, call: OpCall) -> float:
        """Of what a split adds to the calls of the plan; nothing where no price is known."""
        cost = self._layout.costs.cost(problem, device, self._layout.threads[call.module])
        return cost.seconds if cost else 0.0
