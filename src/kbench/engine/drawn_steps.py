"""The decode steps of a session that end with a token drawn on a device, by how many candidates there are."""

from __future__ import annotations

from collections.abc import Callable

from kbench.kernels import TokenDraw

from .executor import Executable
from .sampling import SamplingParams

# Steps that are kept: each has values of its own on the device, and a graph. Who tries out values of top_k changes
# among a few.
_KEPT = 4
# Binds a step that ends with a draw from so many candidates; None where no device can.
BuildDrawn = Callable[[int], Executable | None]


def n_candidates(params: SamplingParams, vocab: int) -> int:
    """How many of the largest logits hold whatever may be drawn as ``params`` say; 0: that cannot be told of the
    logits alone."""
    if params.repetition_penalty != 1 and params.repetition_window:
        return 0
    return 1 if params.temperature == 0 else min(params.top_k or vocab, vocab)


class DrawnSteps:
    """Built when they are first asked for; the ones that were asked for last are kept."""

    def __init__(self, build: BuildDrawn | None, vocab: int) -> None:
        self._build, self._vocab = build, vocab
        self._steps: dict[int, Executable | None] = {}

    def of(self, params: SamplingParams) -> tuple[Executable, TokenDraw] | None:
        """The step for ``params``, and what it ends with; None: the host draws."""
        most = n_candidates(params, self._vocab)
        if self._build is None or not most:
            return None
        if most in self._steps:
            step = self._steps.pop(most)
        else:
            while len(self._steps) >= _KEPT:
                del self._steps[next(iter(self._steps))]
            step = self._build(most)
        self._steps[most] = step  # the last one now
        return None if step is None or step.draw is None else (step, step.draw)
