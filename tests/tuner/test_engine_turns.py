"""Steps of a session that counts its tokens, in turns with a function; both take time of a clock turned by the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbench.core import Phase
from kbench.measure import Clock, FixedCount, measure, median
from kbench.tuner import EngineTurns
from kbench.tuner.engine_turns import LEAST_STEPS

DEPTH = 4


class Machine:
    """Everything takes ``seconds`` times what the machine is slowed down by at that time."""

    def __init__(self, slowed: Callable[[float], float] = lambda now: 1.0) -> None:
        self.now, self.slowed, self.log = 0.0, slowed, list[str]()
        self.position, self.fed = DEPTH, list[int]()

    def work(self, what: str, seconds: float) -> None:
        self.log.append(what)
        self.now += seconds * self.slowed(self.now)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: round(self.now * 1e9), 1.0)

    def prefill(self, tokens):
        self._step(len(tokens))

    def decode(self, token):
        self._step(1)

    def _step(self, n: int) -> None:
        self.fed.append(self.position)
        self.position += n
        self.work("engine", 1.0)

    def truncate(self, position: int) -> None:
        assert position <= self.position, "tokens that are not there cannot be gone back to"
        self.position = position

    def predict(self) -> None:
        self.work("prediction", 2.0)

    def turns(self, phase: Phase, n_steps: int, max_seconds: float = float("inf")) -> EngineTurns:
        return EngineTurns(self, [7, 8, 9], phase, DEPTH, n_steps, max_seconds=max_seconds, clock=lambda: self.now)


@pytest.mark.parametrize(
    ("phase", "begun_at"), [(Phase.PREFILL, [4, 4, 4, 4, 4, 4]), (Phase.DECODE, [4, 4, 5, 6, 4, 5])]
)
def test_a_step_after_each_sample(phase: Phase, begun_at: list[int]) -> None:
    machine = Machine()
    turns = machine.turns(phase, 5)
    taken = measure(machine.predict, stopping=turns, warmup=1, clock=machine.clock)
    # Once each for what comes first, and then one by one.
    assert machine.log == ["prediction", "engine", *["prediction", "engine"] * 5]
    assert turns.seconds == pytest.approx([1.0] * 5) and taken.samples_seconds == pytest.approx((2.0,) * 5)
    assert taken.stop_reason == "5 steps in turns with the engine"
    assert machine.fed == begun_at and machine.position == DEPTH
    assert turns.tokens_per_s == pytest.approx(3.0 if phase is Phase.PREFILL else 1.0)


def test_a_machine_that_drifts_hits_both() -> None:
    """It becomes slower by 2 % a second: measured one after the other the two are off by much, in turns by little."""

    def drifting() -> Machine:
        return Machine(lambda now: 1 + 0.02 * now)

    apart = drifting()
    alone = measure(apart.predict, stopping=FixedCount(12), warmup=1, clock=apart.clock)
    later = apart.turns(Phase.DECODE, 12)
    later.finish()
    assert alone.median_seconds / median(later.seconds) < 0.85 * 2

    together = drifting()
    turns = together.turns(Phase.DECODE, 12)
    taken = measure(together.predict, stopping=turns, warmup=1, clock=together.clock)
    assert taken.median_seconds / median(turns.seconds) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("max_seconds", "n"), [(0.0, LEAST_STEPS), (8.0, LEAST_STEPS), (9.0, 4), (14.9, 6), (1e9, 8)])
def test_time_ends_it_but_not_before_there_is_a_median(max_seconds: float, n: int) -> None:
    """A turn of both takes three seconds, of which the sample is over after two."""
    machine = Machine()
    turns = machine.turns(Phase.DECODE, 8, max_seconds)
    measure(machine.predict, stopping=turns, warmup=1, clock=machine.clock)
    assert len(turns.seconds) == n and machine.position == DEPTH


def test_with_nobody_to_take_turns_with() -> None:
    machine = Machine()
    turns = machine.turns(Phase.DECODE, 6)
    turns.finish()
    assert machine.log == ["engine"] * 7 and len(turns.seconds) == 6
    turns.finish()
    assert len(turns.seconds) == 6
