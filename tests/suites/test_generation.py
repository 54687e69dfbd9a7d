"""Timing a session: what counts and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from kbench.core import UserError
from kbench.suites import measure_generation


class Session:
    """Costs 10 s a prompt, 1 s a token (3 s before it is warm), by a clock of its own."""

    def __init__(self) -> None:
        self.now, self.position, self.resets, self.fed = 0.0, 0, 0, []

    def prefill(self, tokens):
        self.now += 10 if self.resets > 1 else 30
        self.position += len(tokens)
        return self._logits()

    def decode(self, token):
        assert token == self.position % 7, "the most likely token was not taken"
        self.now += 1 if self.resets > 1 else 3
        self.position += 1
        self.fed.append(token)
        return self._logits()

    def _logits(self):
        logits = np.zeros(7, np.float32)
        logits[self.position % 7] = 1
        return logits

    def reset(self) -> None:
        self.resets += 1
        self.position = 0


def test_warm_up_is_left_out() -> None:
    session = Session()
    timing = measure_generation(session, [1, 2, 3, 4, 5], 8, 2, clock=lambda: session.now)
    assert timing.prefill_samples_seconds == (10, 10)
    assert timing.decode_samples_seconds == ((1,) * 8,) * 2
    assert (timing.prefill_seconds, timing.decode_seconds) == (10, 1)
    assert (timing.prefill_tokens_per_s, timing.decode_tokens_per_s) == (0.5, 1)
    assert len(session.fed) == 2 + 2 * 8
    assert session.resets == 2 + 2, "the cache was not reset"


def test_decoding_is_timed_at_the_depth_asked_for() -> None:
    session = Session()
    at: list[int] = []
    plain = session.decode
    session.decode = lambda token: (at.append(session.position), plain(token))[1]  # type: ignore[method-assign]
    timing = measure_generation(session, [1, 2, 3], 4, 2, between=[5] * 10, clock=lambda: session.now)
    assert at == [13, 14, *(2 * [13, 14, 15, 16])]
    assert timing.prefill_samples_seconds == (10, 10) and timing.n_prompt == 3  # not what lies between


@pytest.mark.parametrize("arguments", [([], 3, 1), ([1], 0, 1), ([1], 3, 0)])
def test_nothing_to_measure(arguments) -> None:
    with pytest.raises(UserError):
        measure_generation(Session(), *arguments)
