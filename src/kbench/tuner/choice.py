"""What a group of modules runs with, chosen from what was measured: threads by phase, kernel parameters for both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kbench.core import Phase, Problem
from kbench.measure import quartiles
from kbench.results import Record

from .cell_space import THREADS, Setting
from .cost_model import MEASURED, WORTH_FEWER_THREADS, Cost, Roof
from .module_group import Measured, ModuleGroup, Part
from .ranking import Ranking

if TYPE_CHECKING:
    from .search import Searched  # loads Optuna, which who does not search need not wait for

# Kernel parameters are written into rules only where they gain this much: the margin below which two kernels count as
# equally fast.
WORTH_A_BLOCK = 0.03

# Of each problem so many of its fastest settings are combined with those of the other problems.
_FASTEST, _FASTEST_OF_MANY = 6, 3

Values = Mapping[str, "int | str"]

# One record more of a space: it is measured, or an error says that it cannot be.
MeasureSetting = Callable[["Searched", Setting], "Record | None"]


@dataclass(frozen=True, slots=True)
class Choice:
    """``costs`` are those of the group's problems under ``threads`` and ``block``; ``seconds`` what one module takes in
    what is minimised, ``usual_seconds`` what it took with the defaults."""

    group: ModuleGroup
    threads: Mapping[Phase, int]
    block: Values
    costs: Mapping[Problem, Cost]
    seconds: float
    usual_seconds: float

    @property
    def is_usual(self) -> bool:
        """Whether nothing was found that is worth writing down."""
        return not self.block and set(self.threads.values()) == {self.group.threads}


@dataclass(frozen=True, slots=True)
class _Option:
    """A block with the best threads for it, and what of it was not measured yet."""

    seconds: float
    block: Values
    threads: Mapping[Phase, int]
    unknown: tuple[tuple[Measured, Setting], ...]


class Chooser:
    """Chooses for groups; what is missing for a choice is measured on the way."""

    def __init__(self, tables: Mapping[Measured, Searched], measure: MeasureSetting, roof: Roof) -> None:
        """``tables``: what is known of every problem of the groups that will be asked for."""
        self._tables, self._measure, self._roof = tables, measure, roof
        self._rankings = {key: Ranking(table.space) for key, table in tables.items()}
        self._expected: dict[Measured, tuple[int, dict[Setting, float]]] = {}
        self._failed: set[tuple[Measured, Setting]] = set()

    def choose(self, group: ModuleGroup) -> Choice:
        """The fastest of what was measured, unless the defaults are as good."""
        usual = self._known_best(group, [{}])
        best = self._known_best(group, [{}, *self._fastest_blocks(group)])
        if best.seconds > (1 - WORTH_A_BLOCK) * usual.seconds:
            best = usual
        if not math.isfinite(best.seconds):  # not even the defaults can be measured here: they stay as they are priced
            return Choice(group, dict.fromkeys(Phase, group.threads), {}, {}, 1.0, 1.0)
        costs = {part.problem: self._cost(part, best.threads[part.phase], best.block) for part in group.parts}
        plain = sum(self._part_seconds(part, group.threads, {}) for part in group.parts)
        return Choice(group, best.threads, best.block, costs, best.seconds, plain)

    def _known_best(self, group: ModuleGroup, blocks: list[Values]) -> _Option:
        """The fastest option of ``blocks``; the best expected is measured until the best one is known."""
        while True:
            best = min((self._option(group, block) for block in blocks), key=lambda option: option.seconds)
            if not best.unknown:
                return best
            for key, setting in best.unknown:
                table = self._tables[key]
                record = self._measure(table, setting)
                if record is None or not record.median:
                    self._failed.add((key, setting))
                else:
                    table.records[setting] = record

    def _option(self, group: ModuleGroup, block: Values) -> _Option:
        phases = [tuple(Phase)] if group.shares_problems else [(phase,) for phase in Phase]
        threads: dict[Phase, int] = {}
        total, unknown = 0.0, []
        for together in phases:
            parts = [part for part in group.parts if part.phase in together]
            n = self._threads(parts, group.threads, block)
            threads |= dict.fromkeys(together, n)
            total += sum(self._part_seconds(part, n, block) for part in parts)
            for part in parts:
                key, setting = part.measured, self._setting(part, n, block)
                if setting not in self._tables[key].records and (key, setting) not in self._failed:
                    unknown.append((key, setting))
        return _Option(total, block, threads, tuple(dict.fromkeys(unknown)))

    def _threads(self, parts: list[Part], usual: int, block: Values) -> int:
        """The fastest count of ``parts``; the usual one unless another pays."""
        counts = set.intersection(*(self._counts(part) for part in parts)) if parts else set()
        times = {n: sum(self._part_seconds(part, n, block) for part in parts) for n in sorted(counts | {usual})}
        best = min(times, key=lambda n: times[n])
        return best if times[best] < (1 - WORTH_FEWER_THREADS) * times[usual] else usual

    def _counts(self, part: Part) -> set[int]:
        return {int(n) for n in self._tables[part.measured].space.axes[THREADS]}

    def _setting(self, part: Part, threads: int, block: Values) -> Setting:
        space = self._tables[part.measured].space
        names = list(space.axes)[1:]
        return (threads, *(block.get(name, usual) for name, usual in zip(names, space.start[1:], strict=True)))

    def _part_seconds(self, part: Part, threads: int, block: Values) -> float:
        """What ``part`` takes in what is minimised: the price that it has, times what a setting gains by itself, as it
        was measured or else is expected."""
        key, setting = part.measured, self._setting(part, threads, block)
        if (key, setting) in self._failed:
            return math.inf
        table = self._tables[key]
        record = table.records.get(setting)
        if record is not None and record.median:
            return part.weight * self._priced(part) * record.median
        n, expected = self._expected.get(key, (-1, {}))
        if n != len(table.records):
            logs = self._rankings[key].expected(table.seconds)
            expected = dict(zip(table.space.allowed, np.exp(logs).tolist(), strict=True))
            self._expected[key] = (len(table.records), expected)
        return part.weight * self._priced(part) * expected.get(setting, math.inf)

    def _priced(self, part: Part) -> float:
        """Seconds of the part in a model for a second of its stand-in by itself."""
        usual = self._usual(part)
        return part.usual.seconds / usual.median if usual is not None and usual.median else part.scale

    def _usual(self, part: Part) -> Record | None:
        """The measurement of the stand-in with the usual threads and the kernels' defaults."""
        return self._tables[part.measured].records.get(self._setting(part, part.usual.threads or 1, {}))

    def _fastest_blocks(self, group: ModuleGroup) -> list[Values]:
        """The fastest blocks of each problem, combined; where two problems want different values, each gets its way."""
        tables = list(dict.fromkeys(part.measured for part in group.parts))
        most = _FASTEST if len(tables) <= 2 else _FASTEST_OF_MANY
        chosen: list[list[Values]] = []
        for key in tables:
            table = self._tables[key]
            fastest = sorted(table.seconds, key=lambda setting: table.seconds[setting])
            blocks = dict.fromkeys(tuple(sorted(table.space.block(setting).items())) for setting in fastest)
            found: list[Values] = [dict(block) for block in list(blocks)[:most]]
            if found:
                chosen.append(found if {} in found else [*found, {}])
        merged: dict[tuple[tuple[str, int | str], ...], Values] = {}
        for order in (chosen, chosen[::-1]):
            for several in itertools.product(*order):
                block = {name: value for values in reversed(several) for name, value in values.items()}
                merged[tuple(sorted(block.items()))] = block
        return list(merged.values())

    def _cost(self, part: Part, threads: int, block: Values) -> Cost:
        record = self._tables[part.measured].records[self._setting(part, threads, block)]
        factor = self._priced(part)
        low, middle, high = (factor * seconds for seconds in quartiles(record.samples))
        cost = Cost(middle, low, high, MEASURED, part.implementation, threads, record.key)
        # What was timed in place may lie below the roof: a cache has it.
        if part.usual.seconds < self._roof.seconds(part.problem, part.usual.threads or 1):
            return cost
        return cost.at_least(self._roof.seconds(part.problem, threads))
