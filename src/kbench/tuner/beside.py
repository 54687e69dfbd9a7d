"""All calls of a step, measured while the engine takes its turns: those that run in place by runs of all of them, the
others one by one between the engine's steps::

    run in place    | run |      |          | run |      |          | run |
    engine          |     | step |          |     | step |          |     | step
    cells           |     |      | a share  |     |      | a share  |     |          the rest follows
"""

from __future__ import annotations

from collections.abc import Sequence

from kbench.results import Record
from kbench.suites import Cell, run_cells

from .engine_turns import EngineTurns
from .predict import ModelStep, Steps


class Beside:
    """The engine's turns with the cells of a step that are timed one by one: a share of them after each turn.

    In prefill of a large model these are the long ones, and most of the time.
    """

    def __init__(self, turns: EngineTurns, cells: Sequence[Cell]) -> None:
        self._turns, self.records = turns, list[Record]()
        self._shares = [cells[number :: turns.n_steps] for number in range(turns.n_steps)]

    def start(self) -> None:
        self._turns.start()

    def add(self, sample_seconds: float, elapsed_seconds: float) -> None:
        self._turns.add(sample_seconds, elapsed_seconds)
        self._measure_a_share()

    def done(self) -> bool:
        return self._turns.done()

    @property
    def reason(self) -> str:
        return self._turns.reason

    def finish(self) -> None:
        """What is left when the engine's turns are over, or nothing has taken turns with them."""
        if not self._turns.seconds:
            self.start()
        while not self.done():
            self.add(0.0, self._turns.elapsed_seconds)
        while self._shares:
            self._measure_a_share()

    def _measure_a_share(self) -> None:
        for cell in self._shares.pop(0) if self._shares else ():
            self.records += run_cells([cell], None, verify=False, fresh=False)  # measured now and not checked


def beside(
    step: ModelStep, steps: Steps, turns: EngineTurns, threads: int, cells: Sequence[Cell] | None = None
) -> list[Record]:
    """Records of the calls of ``step`` on ``threads`` threads, taken while the engine has its ``turns``, all of them.

    ``cells``: those that are timed one by one; None: of every call that does not run in place, by the best
    implementation.
    """
    both = Beside(turns, steps.loose_cells(step, threads) if cells is None else cells)
    placed = steps.in_place(step, threads, both)
    both.finish()
    return [*both.records, *placed]
