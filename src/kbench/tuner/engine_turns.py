"""A loaded model's steps, taken in turns with the samples of its prediction.

A shared machine drifts by a fifth within minutes. Of two things that are measured one after the other nobody knows
which of them changed, they or the machine; of two that take turns step by step both meet the same machine::

    prediction   | run |      | run |      | run |            calls of the model on random weights
    engine    step'    | step |      | step |      | step |   the model itself; ' is not counted
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kbench.core import Phase
from kbench.measure import median

# Of the engine, before time can be over: a median of fewer is none.
LEAST_STEPS = 3


class SteppingSession(Protocol):
    """What of the engine's ``Session`` is used here."""

    @property
    def position(self) -> int: ...

    def prefill(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float32]: ...

    def decode(self, token: int) -> npt.NDArray[np.float32]: ...

    def truncate(self, position: int) -> None: ...


class EngineTurns:
    """Steps of one phase at one depth, as a stopping rule: one after each sample of whatever is measured with it."""

    def __init__(
        self,
        session: SteppingSession,
        ids: Sequence[int] | npt.NDArray[np.integer[Any]],
        phase: Phase,
        depth: int,
        n_steps: int,
        *,
        max_seconds: float = math.inf,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``session`` has ``depth`` tokens or more, and is left with ``depth``.

        Args:
            ids: a prefill step adds all of them; decode one after the other, and then again from ``depth``.
            n_steps: after so many it is over, or after ``max_seconds`` and ``LEAST_STEPS`` steps.
        """
        self._session, self._ids, self._phase, self._depth = session, ids, phase, depth
        self.n_steps, self._max_seconds, self._clock = n_steps, max_seconds, clock
        self._late, self._begun = False, 0.0
        self.seconds: list[float] = []

    def start(self) -> None:
        self._step()  # what is read for the first time is brought in
        self.seconds.clear()
        self._late, self._begun = False, self._clock()

    def add(self, sample_seconds: float, elapsed_seconds: float) -> None:
        self._late = elapsed_seconds >= self._max_seconds
        self._step()
        if self.done():
            self._session.truncate(self._depth)

    def done(self) -> bool:
        n = len(self.seconds)
        return n >= self.n_steps or (self._late and n >= LEAST_STEPS)

    @property
    def reason(self) -> str:
        return f"{len(self.seconds)} steps in turns with the engine" if self.done() else ""

    @property
    def elapsed_seconds(self) -> float:
        """Since ``start``."""
        return self._clock() - self._begun

    @property
    def tokens_per_s(self) -> float:
        """Median over steps."""
        return (len(self._ids) if self._phase is Phase.PREFILL else 1) / median(self.seconds)

    def finish(self) -> None:
        """Takes the steps that are left; all of them where nothing has taken turns with them."""
        if not self.seconds:
            self.start()
        while not self.done():
            self.add(0.0, self.elapsed_seconds)

    def _step(self) -> None:
        number = len(self.seconds) % len(self._ids)
        if self._phase is Phase.PREFILL or number == 0:
            self._session.truncate(self._depth)
        begin = self._clock()
        if self._phase is Phase.PREFILL:
            self._session.prefill(self._ids)
        else:
            self._session.decode(int(self._ids[number]))
        self.seconds.append(self._clock() - begin)
