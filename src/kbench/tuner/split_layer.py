"""What a layer costs whose routed experts are split: the columns that a layout adds where an engine can do that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kbench.core import OpCall, Phase, Problem

from .expert_groups import Fork, group_bounds, outcomes
from .schedule import Step, makespan
from .stage import Stage
from .visits import Part

if TYPE_CHECKING:
    from .layout import Layout

# A layer's routed experts that lie on a GPU while the others lie on the host: how many, and the GPU's index.
Split = tuple[int, int]
# With this chance, the host's part and the GPU's take so many seconds; None: there is no such part.
Branch = tuple[float, "float | None", "float | None"]
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
        total = 0.0
        for chance, host, gpu in self._branches(stage, split, phase):
            fork = self._fork(stage, chosen, split[1], entry, phase, host is not None, gpu is not None)
            total += chance * fork.seconds(host or 0.0, gpu or 0.0)
        return total

    def _branches(self, stage: Stage, split: Split, phase: Phase) -> list[Branch]:
        """The outcomes of a step's visits, in seconds."""
        key = stage.start, split, phase
        if key not in self._known:
            call = self._experts_call(stage, phase)
            visits = self._layout.visits_of(stage.name, call)
            self._known[key] = [
                (o.chance, self._part_seconds(call, o.host, _HOST), self._part_seconds(call, o.gpu, split[1]))
                for o in outcomes(visits, split[0], call.problem.integer("tokens"))
                if o.chance
            ]
        return self._known[key]

    def _part_seconds(self, call: OpCall, part: Part | None, device: int) -> float | None:
        if part is None:
            return None
        layout = self._layout
        cost = layout.costs.part(call.problem, layout.devices[device], layout.threads[call.module], part)
        assert cost is not None  # both sides were allowed
        return cost.seconds

    def _experts_call(self, stage: Stage, phase: Phase) -> OpCall:
        return next(call for call, _ in self._layout.calls_of(stage, phase) if call.op == "moe_experts")

    def _fork(
        self, stage: Stage, chosen: Sequence[int], gpu: int, entry: int, phase: Phase, on_host: bool, on_gpu: bool
    ) -> Fork:
        key = (self._layout.shape_of(stage), tuple(chosen), gpu, entry, phase, on_host, on_gpu)
        if key not in self._forks:

            def run(host: float | None, device: float | None) -> float:
                return self._makespan(stage, chosen, gpu, entry, phase, host, device)

            self._forks[key] = Fork.of(run, on_host, on_gpu)
        return self._forks[key]

    def _makespan(
        self,
        stage: Stage,
        chosen: Sequence[int],
        gpu: int,
        entry: int,
        phase: Phase,
        host: float | None,
        device: float | None,
    ) -> float:
        """The schedule with an experts' part of so many seconds on either side, None for no part."""
        layout = self._layout
        steps: list[Step] = []
        joined: tuple[str, str] | None = None  # what each side made, until somebody wants the sum
        prices = layout.call_seconds(stage, phase)
        for (call, unit), by_device in zip(layout.calls_of(stage, phase), prices, strict=True):
            where = layout.devices[chosen[unit]]
            outputs = tuple(value.name for value in call.outputs)
            if call.op == "moe_experts":
                parts = [(layout.devices[_HOST], host), (layout.devices[gpu], device)]
                there = [(at, seconds) for at, seconds in parts if seconds is not None]
                names = [f"{outputs[0]}|{at}" for at, _ in there] if len(there) > 1 else list(outputs)
                for (at, seconds), name in zip(there, names, strict=True):
                    steps.append(Step(at, seconds, call.inputs, (name,)))
                joined = (names[0], names[1]) if len(there) > 1 else None
                continue
            if joined and joined[0].partition("|")[0] in call.inputs:
                # Not before: a GPU works in order, and would wait for the host instead of running shared experts.
                add = Problem.make("add", d=layout.plan.descriptor.d, tokens=call.problem.integer("tokens"))
                cost = layout.costs.cost(add, where, layout.threads[call.module])
                steps.append(Step(where, cost.seconds if cost else 0.0, joined, (joined[0].partition("|")[0],)))
                joined = None
            seconds_there = by_device[chosen[unit]]
            assert seconds_there is not None
            steps.append(Step(where, seconds_there, call.inputs, outputs))
        present = {stage.entry: layout.devices[entry]} if stage.entry else {}
        return makespan(steps, layout.transfer_seconds(phase), present)
