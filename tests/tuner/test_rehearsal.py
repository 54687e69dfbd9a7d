"""Which calls run in place: one layer of every kind, chained as neighbours are, and as many as a cold cache needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("kbench.kernels.cpu._native")

from tiny_models import make_tiny

from kbench.core import AUTO, OpCall, Phase, Problem, work
from kbench.kernels import best
from kbench.model import embedded, lower
from kbench.results import Record, Store
from kbench.suites import runs_in_place
from kbench.tuner import TuneRequest, make_plan, workload
from kbench.tuner.rehearsal import MAX_BYTES, rehearse, rehearsed


def calls_of(name: str, phase: Phase = Phase.DECODE) -> tuple[OpCall, ...]:
    tokens = 1 if phase is Phase.DECODE else 256
    return lower(embedded(name), {}, phase, tokens, 1024, resolve=lambda problem, device: AUTO)


def _scalar(problem: Problem) -> str:
    return "cpu.scalar"


def layers_of(calls: Sequence[OpCall]) -> list[str]:
    return list(dict.fromkeys(call.module.split(".")[2] for call in calls if ".layers." in call.module))


def test_one_layer_of_every_kind() -> None:
    """V2-Lite has a dense layer, and experts whose last matrix is Q8_0 or Q5_0."""
    calls = calls_of("deepseek-v2-lite-chat")
    chain = rehearsed(calls, _scalar, cold_bytes=0)
    assert layers_of(chain) == ["0", "1", "3"]
    assert {call.problem for call in chain} == {call.problem for call in calls}
    assert {call.implementation for call in chain} == {"cpu.scalar"}


def test_what_is_mostly_big_calls_is_left_to_its_cells() -> None:
    assert rehearsed(calls_of("deepseek-v2-chat", Phase.PREFILL), _scalar, cold_bytes=0) == ()
    assert rehearsed(calls_of("deepseek-v2-chat"), _scalar, cold_bytes=0)


@pytest.mark.parametrize("phase", Phase)
def test_every_value_comes_from_a_call_before(phase: Phase) -> None:
    made = {"$tokens"}
    for call in rehearsed(calls_of("deepseek-v2-lite-chat", phase), _scalar, cold_bytes=0):
        assert set(call.inputs) <= made, call.module
        made |= {value.name for value in call.outputs}


def test_more_layers_until_no_cache_holds_them() -> None:
    calls = calls_of("deepseek-v2-lite-chat")
    sizes = []
    for cold in (0, 400 << 20, 1 << 40):
        chain = rehearsed(calls, _scalar, cold_bytes=cold)
        sizes.append(sum(work(call.problem).weight_bytes for call in chain if runs_in_place(call)))
    assert sizes[0] < 400 << 20 <= sizes[1] < sizes[2] <= MAX_BYTES


def test_a_second_tune_runs_nothing_again(tmp_path: Path) -> None:
    request = TuneRequest(context=64, prompt_tokens=8, gen_tokens=4, threads=1)
    plan = make_plan(make_tiny("deepseek2"), request, workload(request))
    cells = [Record.make(problem, best(problem), threads=1, result=(1.0,)) for problem in plan.problems]
    store, told = Store(tmp_path), []

    def run(fresh: bool) -> list[Record]:
        told.clear()
        return rehearse(plan, cells, (1,), store, lambda what, *_: told.append(what), fresh=fresh)

    first = run(fresh=True)
    assert len(told) == 2
    assert {record.core_problem() for record in first} == set(plan.problems)
    assert all(record.extra["in_place"] for record in first)
    again = run(fresh=True)
    assert not told
    assert sorted(r.samples for r in again) == sorted(r.samples for r in first)
    assert run(fresh=False) != first and len(told) == 2
