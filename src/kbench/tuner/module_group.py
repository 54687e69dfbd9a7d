"""Modules that are set alike: those whose calls are the same problems, equally often, in both phases."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kbench.core import CPU, Phase, Problem

from .cost_model import MEASURED, Cost
from .layout import Layout
from .proxy import proxy

# A problem as it is measured, and by what.
Measured = tuple[Problem, str]


@dataclass(frozen=True, slots=True)
class Part:
    """One problem of a group in one phase.

    Attributes:
        problem: as it is priced; ``small`` is what is measured instead, whose seconds are multiplied with ``scale``.
        weight: how often it counts in what is minimised, for one module.
        usual: what ``problem`` costs with the usual threads, perhaps timed in place.
    """

    phase: Phase
    problem: Problem
    small: Problem
    scale: float
    implementation: str
    weight: float
    usual: Cost

    @property
    def measured(self) -> Measured:
        return self.small, self.implementation


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """``threads`` is what the modules run with unless a search finds better."""

    modules: tuple[str, ...]
    parts: tuple[Part, ...]
    threads: int

    @property
    def shares_problems(self) -> bool:
        """Whether a problem occurs in both phases: it then has one price, and both phases the same threads."""
        problems = [part.problem for part in self.parts]
        return len(set(problems)) < len(problems)


def module_groups(layout: Layout, on_cpu: Collection[str]) -> list[ModuleGroup]:
    """Groups of the modules ``on_cpu``, in the model's order; modules with a call that was not measured are in none."""
    loads: dict[str, dict[tuple[Phase, Problem], float]] = {}
    for phase in Phase:
        for call in layout.plan.calls[phase]:
            if call.module in on_cpu:
                problem, times = layout.plan.priced(call.problem)
                load = loads.setdefault(call.module, {})
                load[phase, problem] = load.get((phase, problem), 0.0) + layout.times[phase] * times
    groups: dict[tuple[Part, ...], list[str]] = {}
    for module, load in loads.items():
        parts = [_part(layout, module, phase, problem, weight) for (phase, problem), weight in load.items()]
        known = tuple(part for part in parts if part is not None)
        if len(known) == len(parts):
            groups.setdefault(known, []).append(module)
    return [ModuleGroup(tuple(modules), parts, layout.threads[modules[0]]) for parts, modules in groups.items()]


def _part(layout: Layout, module: str, phase: Phase, problem: Problem, weight: float) -> Part | None:
    cost = layout.costs.cost(problem, CPU, layout.threads[module])
    if cost is None or cost.source != MEASURED:
        return None
    small, scale = proxy(problem)
    return Part(phase, problem, small, scale, cost.implementation, weight, cost)


def shares(groups: Iterable[ModuleGroup]) -> dict[Measured, float]:
    """What each problem takes of all that ``groups`` take, in what is minimised."""
    seconds: dict[Measured, float] = {}
    for group in groups:
        for part in group.parts:
            taken = len(group.modules) * part.weight * part.usual.seconds
            seconds[part.measured] = seconds.get(part.measured, 0.0) + taken
    total = sum(seconds.values())
    return {key: taken / total for key, taken in seconds.items()} if total else {}
