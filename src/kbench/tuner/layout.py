"""From a plan and its prices to the solver's numbers, and from the solver's answer back to an assignment."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kbench.core import AUTO, CPU, Device, OpCall, Phase, Placement, Problem, work
from kbench.kernels import PAGE_TOKENS, pages_for
from kbench.model import plan_arena

from .availability import GPU_IMPLEMENTATION
from .column import Column
from .cost_model import Cost, CostModel
from .placement import PlacementProblem, Solution
from .plan import Plan
from .schedule import Step, TransferSeconds, makespan
from .split_layer import Split, SplitLayer, experts_unit
from .stage import ROUTED, Stage, layer_of, stages
from .visits import Visits

if TYPE_CHECKING:
    from .streaming import Layerwise

_ELEMENT_BYTES = 4  # activations are float32, expert ids int32


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a unit on one device: weights of its own, cache, and tensors that other stages use too."""

    weights: int
    kv: int
    shared: tuple[tuple[str, int], ...]


class Layout:
    """A plan cut into stages and priced: what the solver sees, and how its answer reads."""

    def __init__(
        self,
        plan: Plan,
        costs: CostModel,
        devices: Sequence[Device],
        times: Mapping[Phase, float] | None = None,
        layerwise: Layerwise | None = None,
    ) -> None:
        """``times``: what a step of each phase counts; None: as often as the workload takes it. ``layerwise``: prefill
        brings routed experts of the host to a GPU."""
        self.plan, self.costs, self.devices, self.layerwise = plan, costs, tuple(devices), layerwise
        self.stages = stages(plan.calls[Phase.DECODE])
        # The same stage by phase: latent attention has other calls in prefill.
        prefill = stages(plan.calls[Phase.PREFILL])
        self._in_phase = {
            stage.start: {Phase.DECODE: stage, Phase.PREFILL: other}
            for stage, other in zip(self.stages, prefill, strict=True)
        }
        self.times = dict(times or plan.workload.times)
        self._by_module: dict[Phase, dict[str, list[OpCall]]] = {phase: {} for phase in Phase}
        for phase in Phase:
            for call in plan.calls[phase]:
                self._by_module[phase].setdefault(call.module, []).append(call)
        self.threads = self._choose_threads()
        self._widths = {
            phase: {
                value.name: value.width * _ELEMENT_BYTES * (1 if value.rows == "one" else self._tokens(phase))
                for call in plan.calls[phase]
                for value in call.outputs
            }
            for phase in Phase
        }
        users: dict[str, set[int]] = {}
        for position, stage in enumerate(self.stages):
            for call in plan.calls[Phase.DECODE][stage.start : stage.stop]:
                for name in call.weights:
                    users.setdefault(name, set()).add(position)
        self._shared = {name for name, positions in users.items() if len(positions) > 1}
        # What brings the host's experts to a GPU for prefill brings all of a layer's.
        self._splits = layerwise is None and costs.availability.splits_on(devices)
        self._visits = _planned_visits(plan.visits, self._splits)
        self._split = SplitLayer(self)
        self._shapes: dict[object, int] = {}
        self._shape_of: dict[int, int] = {}
        self._seconds: dict[tuple[int, Phase], list[list[float | None]]] = {}

    def priced_by(self, costs: CostModel) -> Layout:
        """The same layout at other prices."""
        other = copy.copy(self)
        other.costs, other._split, other._seconds = costs, SplitLayer(other), {}
        return other

    def _tokens(self, phase: Phase) -> int:
        return self.plan.shapes[phase][0]

    def _choose_threads(self) -> dict[str, int]:
        """Threads by module, from the time of all its calls in both phases."""
        loads: dict[str, dict[Problem, float]] = {}
        for phase in Phase:
            for call in self.plan.calls[phase]:
                load = loads.setdefault(call.module, {})
                problem, times = self.plan.priced(call.problem)
                load[problem] = load.get(problem, 0.0) + self.times[phase] * times
        chosen: dict[tuple[tuple[Problem, float], ...], int] = {}
        result = {}
        for module, load in loads.items():
            key = tuple(load.items())
            if key not in chosen:
                chosen[key] = self.costs.best_threads(load)
            result[module] = chosen[key]
        return result

    def cost(self, call: OpCall, device: Device, threads: int | None = None) -> Cost | None:
        """Of one call, or None when nothing runs it there. What sequences do apart costs each of them as much.

        ``threads``: of the CPU; None takes those that were chosen for the call's module.
        """
        if call.op == "moe_experts" and "experts" in call.attrs:
            return self._split.cost(call, device, threads)
        problem, times = self.plan.priced(call.problem)
        # A mixture without shared experts has calls of its own where it is split only.
        n = self.threads.get(call.module, self.costs.threads[-1]) if threads is None else threads
        if call.op == "moe_experts" and self._visits:
            visits = self.visits_of(layer_of(call.module), call)
            return self.costs.part(problem, device, n, visits.whole(problem.integer("tokens")))
        cost = self.costs.cost(problem, device, n)
        return cost if cost is None or times == 1 else cost.scaled(times)

    def visits_of(self, layer: str, call: OpCall) -> Visits:
        """How the routed experts of ``layer``, whose call is given, are visited."""
        return self._visits.get(layer) or uniform_visits(call.problem.integer("experts"), call.problem.integer("top_k"))

    def _weight_bytes(self, call: OpCall, device: Device) -> int:
        return self.costs.weight_bytes(call.problem, device, self.threads[call.module]) if call.weights else 0

    def transfer_bytes(self, phase: Phase, value: str) -> int:
        return self._widths[phase][value]

    def sizes(self, stage: Stage, unit: int, device: Device) -> Sizes:
        """What ``unit`` takes on ``device``."""
        weights = kv = 0
        shared: dict[str, int] = {}
        own: set[tuple[str, ...]] = set()
        for index, of in zip(range(stage.start, stage.stop), stage.unit_of, strict=True):
            call = self.plan.calls[Phase.DECODE][index]
            if of != unit:
                continue
            if call.problem.has("context"):
                whole = call.problem.replace(context=_kept_tokens(self.plan.context, device))
                kv += self.plan.batch * int(work(whole).resident_bytes)
            if call.op == "delta_rule":  # a state of fixed size
                kv += self.plan.batch * int(work(call.problem).resident_bytes)
            if any(name in self._shared for name in call.weights):
                shared.update(dict.fromkeys(call.weights, self._weight_bytes(call, device)))
            elif call.op == "head_linear" or call.weights not in own:
                # The two halves of kv_b are packed apart, under the same tensor's name.
                own.add(call.weights)
                weights += self._weight_bytes(call, device)
        for call, of in self.calls_of(stage, Phase.PREFILL):
            # Absorbing reads kv_b in other forms than decompressing.
            if of == unit and call.op == "mla_decompressed":
                weights += self._weight_bytes(call, device)
        return Sizes(weights, kv, tuple(sorted(shared.items())))

    def problem(self, capacity: Sequence[int]) -> PlacementProblem:
        """The solver's view; equal stages share their columns."""
        types: list[tuple[Column, ...]] = []
        chain: list[int] = []
        known: dict[object, int] = {}
        shared_bytes: dict[str, int] = {}
        for stage in self.stages:
            sizes = [[self.sizes(stage, u, d) for d in self.devices] for u in range(len(stage.units))]
            for use in (use for unit in sizes for size in unit for use in size.shared):
                shared_bytes[use[0]] = max(use[1], shared_bytes.get(use[0], 0))
            key = self._signature(stage, sizes)
            if key not in known:
                known[key] = len(types)
                types.append(tuple(self._columns(stage, sizes)))
            chain.append(known[key])
        return PlacementProblem(
            tuple(types), tuple(chain), tuple(capacity), tuple(sorted(shared_bytes.items())), first=0
        )

    def _signature(self, stage: Stage, sizes: Sequence[Sequence[Sizes]]) -> object:
        visits = self._visits.get(stage.name)
        return self.shape_of(stage), tuple(tuple(unit) for unit in sizes), visits.key if visits else None

    def shape_of(self, stage: Stage) -> int:
        """The same number for stages that take as long on the same devices, visits to experts left aside."""
        if stage.start not in self._shape_of:
            calls = [call for phase in Phase for call, _ in self.calls_of(stage, phase)]
            wiring = {name: number for number, name in enumerate(dict.fromkeys(n for c in calls for n in c.inputs))}
            shape = (
                tuple(self._in_phase[stage.start][phase].unit_of for phase in Phase),
                tuple((c.problem, tuple(wiring[name] for name in c.inputs), self.threads[c.module]) for c in calls),
            )
            self._shape_of[stage.start] = self._shapes.setdefault(shape, len(self._shapes))
        return self._shape_of[stage.start]

    def _columns(self, stage: Stage, sizes: Sequence[Sequence[Sizes]]) -> list[Column]:
        allowed = [
            [
                d
                for d, device in enumerate(self.devices)
                if all(self.cost(call, device) is not None for call in self._calls_of(stage, unit))
            ]
            for unit in range(len(stage.units))
        ]
        columns = []
        for chosen in _choices(allowed, len(self.devices)):
            columns.append(self._column(stage, sizes, chosen, None))
            if self._splits:
                ways = self._split.splits(stage, chosen, allowed)
                columns += [self._column(stage, sizes, chosen, split) for split in ways]
        return columns

    def _column(
        self, stage: Stage, sizes: Sequence[Sequence[Sizes]], chosen: tuple[int, ...], split: Split | None
    ) -> Column:
        n_bytes = [0] * len(self.devices)
        shared = set()
        for unit, d in enumerate(chosen):
            n_bytes[d] += sizes[unit][d].weights + sizes[unit][d].kv
            shared |= {(name, d) for name, _ in sizes[unit][d].shared}
        if split is not None and (routed := experts_unit(stage)) is not None:
            (on_gpu, gpu), here = split, chosen[routed]
            experts = next(c for c in self._calls_of(stage, routed) if c.op == "moe_experts").problem.integer("experts")
            # Experts of a layer are all of one size.
            n_bytes[here] -= sizes[routed][here].weights // experts * on_gpu
            n_bytes[gpu] += -(-sizes[routed][gpu].weights // experts) * on_gpu
        seconds = tuple(
            sum(self.times[phase] * self.stage_seconds(stage, chosen, entry, phase, split) for phase in Phase)
            for entry in range(len(self.devices))
        )
        return Column(chosen, chosen[stage.unit_of[-1]], seconds, tuple(n_bytes), frozenset(shared), split)

    def _calls_of(self, stage: Stage, unit: int) -> list[OpCall]:
        return [call for phase in Phase for call, of in self.calls_of(stage, phase) if of == unit]

    def calls_of(self, stage: Stage, phase: Phase) -> list[tuple[OpCall, int]]:
        """The stage's calls in ``phase``, each with its unit."""
        here = self._in_phase[stage.start][phase]
        return list(zip(self.plan.calls[phase][here.start : here.stop], here.unit_of, strict=True))

    def stage_seconds(
        self, stage: Stage, chosen: Sequence[int], entry: int, phase: Phase, split: Split | None = None
    ) -> float:
        """Of one step of ``phase``: the schedule of the stage's calls with its units on ``chosen`` devices, and some of
        its routed experts elsewhere where there is a ``split``."""
        if split is not None:
            return self._split.seconds(stage, chosen, split, entry, phase)
        steps = []
        prices = self.call_seconds(stage, phase)
        for (call, unit), by_device in zip(self.calls_of(stage, phase), prices, strict=True):
            at, seconds = chosen[unit], by_device[chosen[unit]]
            if self.layerwise and phase is Phase.PREFILL and not at and call.op == "moe_experts":
                at = _brought_to(chosen)
                seconds = self.brought(call, self.devices[at]).seconds
            assert seconds is not None
            outputs = tuple(value.name for value in call.outputs)
            steps.append(Step(self.devices[at], seconds, call.inputs, outputs))
        present = {stage.entry: self.devices[entry]} if stage.entry else {}
        return makespan(steps, self.transfer_seconds(phase), present)

    def brought(self, call: OpCall, device: Device) -> Cost:
        """Of routed experts that a prefill step brings from the host to ``device``."""
        problem, _ = self.plan.priced(call.problem)
        threads = self.threads[call.module]
        cost = self.layerwise.cost(self.costs, problem, device, threads) if self.layerwise else None
        assert cost is not None  # else nobody planned it
        return cost

    def swapped_to(self, solution: Solution) -> set[Device]:
        """The GPUs that prefill brings routed experts to."""
        return {
            self.devices[_brought_to(column.devices)]
            for stage, column in zip(self.stages, solution.columns, strict=True)
            for unit, at in zip(stage.units, column.devices, strict=True)
            if self.layerwise and unit.kind == ROUTED and not at
        }

    def swapped_bytes(self, device: Device) -> int:
        """What the routed experts of one layer, the largest, take on ``device``."""
        calls = experts_calls(self.plan.calls[Phase.PREFILL])
        return max((self._weight_bytes(call, device) for call in calls), default=0)

    def call_seconds(self, stage: Stage, phase: Phase) -> list[list[float | None]]:
        """Of each call of the stage on each device; None where nothing runs it."""
        key = stage.start, phase
        if key not in self._seconds:
            costs = ([self.cost(call, device) for device in self.devices] for call, _ in self.calls_of(stage, phase))
            self._seconds[key] = [[cost.seconds if cost else None for cost in of] for of in costs]
        return self._seconds[key]

    def transfer_seconds(self, phase: Phase) -> TransferSeconds:
        """Prices copies of the values of ``phase``; what is behind a bar tells parts of a value apart."""
        widths = self._widths[phase]
        return lambda value, src, dst: self.costs.transfer(widths[value.partition("|")[0]], src, dst).seconds

    def assignment(self, solution: Solution) -> dict[str, Placement]:
        """The placement of every module of the tree.

        A module with calls runs where its unit was placed. One without (a container, a shared part) goes with the
        nearest module above it that has calls, else with the first below it.
        """
        placed: dict[str, Placement] = {}
        for stage, column in zip(self.stages, solution.columns, strict=True):
            for unit, chosen in zip(stage.units, column.devices, strict=True):
                for module in unit.modules:
                    found = self._placement(module, self.devices[chosen])
                    if self.layerwise and unit.kind == ROUTED and not chosen:
                        # Kernel parameters are those of the CPU's kernels.
                        gpu = self.devices[_brought_to(column.devices)]
                        found = replace(found, prefill_device=gpu, prefill_op=GPU_IMPLEMENTATION, block={})
                    placed[module] = found
            if column.split is not None:
                self._split.place(stage, column.devices, column.split, placed)
        result: dict[str, Placement] = {}
        for node in self.plan.tree.walk():
            above = placed.get(node.name.rpartition(".")[0])
            below = (placed[child.name] for child in node.walk() if child.name in placed)
            nearest = placed.get(node.name) or (above if not node.children else None) or next(below, None) or above
            result[node.name] = nearest or Placement()
        for name in ("", "model", "model.layers"):
            # The containers of everything have no one place.
            if name in result and name not in placed:
                result[name] = Placement()
        return result

    def _placement(self, module: str, device: Device) -> Placement:
        names: dict[Phase, set[str]] = {phase: set() for phase in Phase}
        for phase in Phase:
            for call in self._by_module[phase].get(module, ()):
                cost = self.cost(call, device)
                assert cost is not None
                names[phase].add(cost.implementation)
        # Calls of one module that want different implementations are left to the choice call by call.
        ops = {phase: next(iter(found)) if len(found) == 1 else AUTO for phase, found in names.items()}
        threads = self.threads[module] if device == CPU else None
        return Placement(device, ops[Phase.DECODE], device, ops[Phase.PREFILL], None, threads)

    def resolve(self, problem: Problem, device: Device) -> str:
        """The implementation of a call that its placement leaves open: the fastest one known."""
        for n in reversed(self.costs.threads):
            cost = self.costs.cost(problem, device, n)
            if cost is not None:
                return cost.implementation
        return AUTO


def _kept_tokens(context: int, device: Device) -> int:
    """Tokens that a sequence's cache for ``context`` of them has room for: on a GPU in whole pages."""
    return context if device == CPU else pages_for(context) * PAGE_TOKENS


@functools.cache
def uniform_visits(experts: int, top_k: int) -> Visits:
    return Visits.uniform(experts, top_k)


def _planned_visits(recorded: Mapping[str, Visits], by_layer: bool) -> dict[str, Visits]:
    """By layer. Where experts move as one it matters little which layer is visited how; with the mean of all of them,
    layers stay alike, and are counted instead of told apart."""
    if by_layer or not recorded:
        return dict(recorded)
    first, *others = recorded.values()
    return dict.fromkeys(recorded, first.mean(others))


def experts_calls(calls: Iterable[OpCall]) -> list[OpCall]:
    """Those of ``calls`` that are routed experts."""
    return [call for call in calls if call.op == "moe_experts"]


def _brought_to(chosen: Sequence[int]) -> int:
    """The GPU that a stage on ``chosen`` devices uses; the first where it uses none."""
    return max(chosen) or 1


def _choices(allowed: Sequence[Sequence[int]], n_devices: int) -> Iterable[tuple[int, ...]]:
    """Devices for the units of a stage: the host's and those of one GPU. More than one would cross links twice for
    every layer, and there would be too many to try."""
    found: dict[tuple[int, ...], None] = {}
    for gpu in range(1, max(n_devices, 2)):
        found.update(dict.fromkeys(itertools.product(*([d for d in of if d in (0, gpu)] for of in allowed))))
    return found


def workspace_bytes(calls: Mapping[Phase, Sequence[OpCall]], tokens: Mapping[Phase, int], device: Device | None) -> int:
    """Activations of both phases, each in an arena of its own; with ``device``, those made there."""
    return sum(plan_arena(calls[phase], tokens[phase], device).n_bytes for phase in Phase)
