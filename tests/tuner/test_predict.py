"""The price of any step: the sum of its calls at any depth, with an interval that is wider than the samples'."""

from __future__ import annotations

import pytest
from made_up_records import record_of, seconds_of
from tiny_models import make_tiny

from kbench.core import AUTO, Phase, UserError, work
from kbench.model import embedded, lower
from kbench.suites import in_place
from kbench.tuner import CostModel, ModelStep, Steps, proxy
from kbench.tuner.price import RUN_TO_RUN

MODEL = embedded("deepseek-v2-lite-chat")
STEPS = [ModelStep(Phase.DECODE, 1, 9), ModelStep(Phase.DECODE, 1, 2048), ModelStep(Phase.PREFILL, 256, 768)]


def test_a_step_is_the_sum_of_its_calls() -> None:
    calls = [
        lower(MODEL, {}, step.phase, step.tokens, step.context, resolve=lambda problem, device: AUTO) for step in STEPS
    ]
    problems = {call.problem for of in calls for call in of}
    costs = CostModel([record_of(proxy(problem)[0], "cpu.avx2", 2) for problem in problems], threads=(2,))
    steps = Steps(MODEL, STEPS, 4096)
    prices = [steps.price(step, costs, 2) for step in STEPS]
    for price, mine in zip(prices, calls, strict=True):
        seconds = sum(seconds_of(proxy(call.problem)[0], 2) * proxy(call.problem)[1] for call in mine)
        assert price.seconds == pytest.approx(seconds)
        # The made-up quartiles are 2 % off either way.
        assert price.low == pytest.approx(0.98 * seconds * (1 - RUN_TO_RUN))
        assert price.high == pytest.approx(1.02 * seconds * (1 + RUN_TO_RUN))
    assert prices[0].seconds < prices[1].seconds < prices[2].seconds


def test_what_was_not_measured_is_named() -> None:
    with pytest.raises(UserError, match="no price for embedding"):
        Steps(MODEL, STEPS[:1], 4096).price(STEPS[0], CostModel([], threads=(2,)), 2)


@pytest.mark.parametrize("most_flops", [in_place.MAX_FLOPS, 20_000])
def test_every_call_is_timed_in_place_or_by_itself(monkeypatch: pytest.MonkeyPatch, most_flops: float) -> None:
    """What is too big to run in place, here the head and the widest products, by itself."""
    monkeypatch.setattr(in_place, "MAX_FLOPS", most_flops)
    model, step = make_tiny("llama", "Q4_0"), ModelStep(Phase.DECODE, 1, 9)
    calls = lower(model, {}, step.phase, step.tokens, step.context, resolve=lambda problem, device: AUTO)
    steps = Steps(model, [step], 64)
    loose = {cell.problem for cell in steps.loose_cells(step, 1)}
    placed = {record.core_problem() for record in steps.in_place(step, 1)}
    assert bool(loose) == any(work(call.problem).flops > most_flops for call in calls)
    assert loose | placed == {call.problem if call.problem in placed else proxy(call.problem)[0] for call in calls}
