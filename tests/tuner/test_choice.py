"""What a group of modules runs with, against trying every combination."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from recorded_space import RecordedSpace

from kbench.core import Phase, Problem
from kbench.results import Record
from kbench.tuner.cell_space import CellSpace, Setting, cell_space
from kbench.tuner.choice import Chooser
from kbench.tuner.cost_model import MEASURED, Cost, Roof
from kbench.tuner.module_group import ModuleGroup, Part
from kbench.tuner.search import Searched
from kbench.tuner.search_space import SearchSpace

DECODE = Problem.make("linear", quant="Q4_K", n=512, k=1024, tokens=1)
PREFILL = DECODE.replace(tokens=64)
BOTH = {"prefetch": (0, 1024, 2048), "partition": ("static", "dynamic")}
DEFAULTS = {"prefetch": 1024, "partition": "static", "tile": 0}
PREFETCH_SECONDS = {1: {0: 0.8, 1024: 1.0, 2048: 0.9}, 64: {0: 1.2, 1024: 1.0, 2048: 0.92}}


# With 4 threads and the defaults both take a millisecond, by themselves as in a model.
USUAL = Cost(1e-3, 1e-3, 1e-3, MEASURED, "cpu.avx2", 4)


def space_of(problem: Problem) -> CellSpace:
    candidates = BOTH if problem == DECODE else {**BOTH, "tile": (0, 4, 8)}
    return cell_space(
        problem, "cpu.avx2", (1, 2, 4), SearchSpace(candidates, {name: DEFAULTS[name] for name in candidates})
    )


def seconds_of(problem: Problem, setting: Setting) -> float:
    """Decode is fastest without prefetching, prefill with a lot of it; decode with 2 threads, prefill with 4."""
    values = dict(zip(space_of(problem).axes, setting, strict=True))
    tokens = problem.integer("tokens")
    seconds = 1e-3 * PREFETCH_SECONDS[tokens][int(values["prefetch"])]
    seconds *= {"static": 1.0, "dynamic": 0.99}[str(values["partition"])]
    if tokens == 1:
        return seconds * {1: 1.5, 2: 0.8, 4: 1.0}[int(values["threads"])]
    return seconds * {1: 4.0, 2: 2.0, 4: 1.0}[int(values["threads"])] * {0: 1.0, 4: 0.7, 8: 1.1}[int(values["tile"])]


def record(problem: Problem, setting: Setting) -> Record:
    return RecordedSpace.record(space_of(problem).cell(setting), seconds_of(problem, setting))


def group(decode_weight: float, prefill_weight: float) -> ModuleGroup:
    parts = (
        Part(Phase.DECODE, DECODE, DECODE, 1.0, "cpu.avx2", decode_weight, USUAL),
        Part(Phase.PREFILL, PREFILL, PREFILL, 1.0, "cpu.avx2", prefill_weight, USUAL),
    )
    return ModuleGroup(("a", "b"), parts, 4)


class Tables:
    """Some settings of both problems are known; the others are measured when asked for."""

    def __init__(self, share: float) -> None:
        self.tables = {}
        self.asked: list[tuple[Problem, Setting]] = []
        for problem in (DECODE, PREFILL):
            space = space_of(problem)
            known = [space.start, *random.Random(3).sample(space.allowed, int(share * len(space.allowed)))]
            records = {setting: record(problem, setting) for setting in known}
            self.tables[problem, "cpu.avx2"] = Searched(space, records)

    def measure(self, table: Searched, setting: Setting) -> Record | None:
        self.asked.append((table.space.problem, setting))
        return record(table.space.problem, setting)


def brute_force(weights: Mapping[Phase, float]) -> float:
    """The least time over all blocks and thread counts, with no margin for anything."""
    best = float("inf")
    for prefetch, partition, tile in itertools.product(*BOTH.values(), (0, 4, 8)):
        decode = min(seconds_of(DECODE, (n, prefetch, partition)) for n in (1, 2, 4))
        prefill = min(seconds_of(PREFILL, (n, prefetch, partition, tile)) for n in (1, 2, 4))
        best = min(best, weights[Phase.DECODE] * decode + weights[Phase.PREFILL] * prefill)
    return best


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (3.0, 1.0), (1.0, 9.0)])
def test_it_is_the_best_of_all_combinations(weights: tuple[float, float], share: float) -> None:
    tables = Tables(share)
    choice = Chooser(tables.tables, tables.measure, Roof()).choose(group(*weights))
    best = brute_force(dict(zip((Phase.DECODE, Phase.PREFILL), weights, strict=True)))
    # What gains under 3 % is not chosen; what was neither known nor expected is not found.
    assert choice.seconds <= best * (1.03 if share == 1 else 1.1)
    assert len(set(tables.asked)) == len(tables.asked) < 12


def test_phases_have_thread_counts_and_share_a_block() -> None:
    tables = Tables(1.0)
    choice = Chooser(tables.tables, tables.measure, Roof()).choose(group(1.0, 1.0))
    assert choice.threads == {Phase.DECODE: 2, Phase.PREFILL: 4}
    assert choice.block["tile"] == 4 and choice.block["prefetch"] == 2048
    assert choice.costs[DECODE].threads == 2 and choice.costs[PREFILL].threads == 4
    whole = choice.costs[DECODE].seconds + choice.costs[PREFILL].seconds
    assert whole == pytest.approx(choice.seconds) and choice.usual_seconds == pytest.approx(2e-3)


def test_a_small_gain_is_not_written_down() -> None:
    tables = Tables(1.0)
    for table in tables.tables.values():
        for setting in table.records:
            factor = 0.98 if "dynamic" in setting else 1.0
            table.records[setting] = RecordedSpace.record(table.space.cell(setting), 1e-3 * factor)
    choice = Chooser(tables.tables, tables.measure, Roof()).choose(group(1.0, 1.0))
    assert choice.is_usual and choice.block == {} and tables.asked == []


def test_a_problem_of_both_phases_has_one_thread_count() -> None:
    parts = tuple(Part(phase, DECODE, DECODE, 1.0, "cpu.avx2", 1.0, USUAL) for phase in Phase)
    tables = Tables(1.0)
    choice = Chooser(tables.tables, tables.measure, Roof()).choose(ModuleGroup(("a",), parts, 4))
    assert choice.threads == {Phase.DECODE: 2, Phase.PREFILL: 2} and choice.block["prefetch"] == 0


def test_where_nothing_can_be_measured_the_defaults_stay() -> None:
    tables = {key: Searched(table.space) for key, table in Tables(1.0).tables.items()}
    choice = Chooser(tables, lambda table, setting: None, Roof()).choose(group(1.0, 1.0))
    assert choice.is_usual


def test_gains_are_those_of_the_price_in_a_model() -> None:
    """In place everything takes twice as long as by itself: so does what was chosen."""
    tables = Tables(1.0)
    parts = tuple(replace(part, usual=USUAL.scaled(2.0)) for part in group(1.0, 1.0).parts)
    choice = Chooser(tables.tables, tables.measure, Roof()).choose(ModuleGroup(("a",), parts, 4))
    alone = Chooser(tables.tables, tables.measure, Roof()).choose(group(1.0, 1.0))
    assert choice.block == alone.block and choice.seconds == pytest.approx(2 * alone.seconds)
    assert choice.costs[DECODE].seconds == pytest.approx(2 * alone.costs[DECODE].seconds)
