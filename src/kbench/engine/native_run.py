"""A run of consecutive native calls, recorded once as one program and replayed for every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall
from kbench.kernels import Cache, Spans, implementation

from .weights import WeightStore


class NativeRun:
    """One ``Program``: one call into native code however many operations it holds."""

    def __init__(
        self,
        calls: Sequence[OpCall],
        max_tokens: int,
        buffer: npt.NDArray[np.uint8],
        offsets: Mapping[str, int],
        weights: WeightStore,
        caches: Mapping[int, Cache],
        pool: Any,
        max_spans: int = 1,
    ) -> None:
        from kbench.kernels import Program

        self._program = Program(pool, buffer, max_tokens, max_spans)
        # A call may be more than one step: seconds of steps are summed by call.
        self._ends: list[int] = []
        for call in calls:
            native: Any = implementation(call.implementation)
            self._ends.append(native.emit(self._program, call, weights.of(call), offsets, caches) + 1)
        self.run = self._program.run

    def launch(self, tokens: npt.NDArray[np.int32], spans: Spans) -> Any:
        """The run for C code to start, of what the arrays hold then: ``function(data)`` by their addresses; ``error``
        tells of the last one."""
        return self._program.launch(tokens, spans)

    def profile(self, tokens: npt.NDArray[np.int32], spans: Spans) -> list[float]:
        """Runs once; returns the seconds of each call."""
        steps: list[float] = self._program.run(tokens, spans, True)
        begins = [0, *self._ends[:-1]]
        return [sum(steps[begin:end]) for begin, end in zip(begins, self._ends, strict=True)]
