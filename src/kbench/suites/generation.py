"""Timing a loaded model: a prompt, then one token after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kbench.core import UserError
from kbench.measure import median


class GenerationSession(Protocol):
    """What of the engine's ``Session`` is used here."""

    def prefill(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]: ...

    def decode(self, token: int) -> npt.NDArray[np.float32]: ...

    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GenerationTiming:
    """Raw seconds: one number per repetition for the prompt, one per token and repetition for decode."""

    n_prompt: int
    n_tokens: int
    prefill_samples_seconds: tuple[float, ...]
    decode_samples_seconds: tuple[tuple[float, ...], ...]

    @property
    def prefill_seconds(self) -> float:
        """Of the whole prompt, median over repetitions."""
        return median(self.prefill_samples_seconds)

    @property
    def decode_seconds(self) -> float:
        """Per token: the median over repetitions of the mean over a repetition's tokens."""
        return median([sum(run) / len(run) for run in self.decode_samples_seconds])

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.n_prompt / self.prefill_seconds

    @property
    def decode_tokens_per_s(self) -> float:
        return 1 / self.decode_seconds


def measure_generation(
    session: GenerationSession,
    prompt_tokens: Sequence[int],
    n_tokens: int,
    repetitions: int = 3,
    *,
    between: Sequence[int] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> GenerationTiming:
    """Generates ``n_tokens`` greedily after ``prompt_tokens``, ``repetitions`` times from an empty cache.

    Tokens ``between`` the prompt and what is generated are added unmeasured: they bring decoding to the depth that is
    asked about.

    One run with two tokens goes before, unmeasured: it pays for lazy allocation and wakes the threads. Choosing the
    token is not part of a sample.

    Raises:
        UserError: no prompt, or no tokens asked for.
    """
    if not prompt_tokens or n_tokens < 1 or repetitions < 1:
        raise UserError("nothing to generate", accepted="a prompt of one token or more, and one token or more after it")
    session.reset()
    logits = session.prefill([*prompt_tokens, *between])
    for _ in range(min(2, n_tokens)):
        logits = session.decode(int(np.argmax(logits)))
    prefill: list[float] = []
    decode: list[tuple[float, ...]] = []
    for _ in range(repetitions):
        session.reset()
        begin = clock()
        logits = session.prefill(prompt_tokens)
        prefill.append(clock() - begin)
        if between:
            logits = session.prefill(between)
        run: list[float] = []
        for _ in range(n_tokens):
            token = int(np.argmax(logits))
            begin = clock()
            logits = session.decode(token)
            run.append(clock() - begin)
        decode.append(tuple(run))
    session.reset()
    return GenerationTiming(len(prompt_tokens), n_tokens, tuple(prefill), tuple(decode))
