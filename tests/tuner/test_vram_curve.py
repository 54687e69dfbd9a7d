"""More and less GPU memory: the curve is what the solver says at each budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_records import records

from kbench.core import Phase
from kbench.model import load_descriptor
from kbench.results import Record
from kbench.tuner import TuneRequest, cells, make_plan, workload
from kbench.tuner.budget import budgets
from kbench.tuner.cost_model import CostModel
from kbench.tuner.details import block_sweeps
from kbench.tuner.placement import solve
from kbench.tuner.tune import Placed, place
from kbench.tuner.vram_curve import GAP, curve_rows, phase_seconds, vram_curve

VRAM = 6 << 30


@pytest.fixture(scope="module")
def placed() -> Placed:
    asked = TuneRequest(model="deepseek-v2-lite-chat", vram_bytes=VRAM, dram_bytes=24 << 30)
    plan = make_plan(load_descriptor(asked.model)[0], asked, workload(asked))
    available, profiles = budgets(asked, None)
    return place(plan, CostModel(records(cells(plan, (2,))), threads=(2,), profiles=profiles), available, profiles)


def test_each_point_is_what_the_solver_proves_at_its_budget(placed: Placed) -> None:
    points = vram_curve(placed.problem, 1, VRAM)
    sizes = [point.vram_bytes for point in points]
    assert sizes == sorted(set(sizes)) and {0, VRAM, 12 << 30, 48 << 30} <= set(sizes) and sizes[-1] == 48 << 30
    seconds = []
    for point in points:
        capacity = max(0, placed.problem.capacity[1] + point.vram_bytes - VRAM)
        exact = solve(replace(placed.problem, capacity=(placed.problem.capacity[0], capacity)))
        assert exact is not None and point.solution is not None
        assert point.solution.used_bytes[1] <= capacity
        assert point.solution.seconds <= exact.seconds * (1 + 2 * GAP)
        seconds.append(point.solution.seconds)
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 1.2 * seconds[-1]
    assert points[0].solution is not None and points[0].solution.used_bytes[1] == 0


def test_the_curve_goes_to_twice_a_budget_that_is_large(placed: Placed) -> None:
    assert vram_curve(placed.problem, 1, 40 << 30)[-1].vram_bytes == 80 << 30


def test_seconds_by_stage_add_up_to_the_price_of_the_whole(placed: Placed) -> None:
    found = phase_seconds(placed.layout, placed.solution)
    for phase in Phase:
        assert found[phase] == pytest.approx(placed.prices[phase].seconds, rel=1e-9)


def test_a_budget_that_fits_nothing_is_a_row_without_rates(placed: Placed) -> None:
    # The host alone is a tenth too small: with little VRAM nothing fits, with more it does.
    alone = vram_curve(placed.problem, 1, VRAM)[0].solution
    assert alone is not None
    tight = replace(placed.problem, capacity=(alone.used_bytes[0] * 95 // 100, placed.problem.capacity[1]))
    rows = curve_rows(placed.layout, tight, 1, VRAM)
    assert rows[0] == {"vram_bytes": 0, "used_bytes": None}
    assert rows[-1]["decode_tokens_per_s"] > 0


def test_sweeps_of_parameters_keep_the_last_record_of_the_last_kernels() -> None:
    def record(seconds: float, version: str, **block: int) -> Record:
        extra = {"block": block, "kernel_version": version}
        return Record("linear(n=1)", "linear", "cpu.avx2", samples=(seconds,), median=seconds, extra=extra)

    old, default, first, again = (
        record(9.0, "a", panel=8), record(1.0, "b"), record(3.0, "b", panel=4), record(2.0, "b", panel=4)
    )  # fmt: skip
    assert block_sweeps([old, default, first, again]) == [
        {
            "problem": "linear(n=1)",
            "implementation": "cpu.avx2",
            "settings": [{"block": "default", "seconds": 1.0}, {"block": "panel=4", "seconds": 2.0}],
        }
    ]
    assert block_sweeps([default]) == []  # one setting is no sweep
