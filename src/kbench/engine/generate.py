"""Makes tokens one after another until something ends the answer."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kbench.core import UserError

from .sampling import GREEDY, Sampler, SamplingParams
from .session import Session
from .tokenizer import TextStream, Tokenizer

# Of the sequence that an answer is made in.
_ONE_MORE = {0: 1}


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. ``text`` is what became printable with it (empty inside a character, or while it may
    still turn into a stop string); ``seconds`` is the time since the token before it, or since the start."""

    id: int
    text: str
    seconds: float


@dataclass(slots=True)
class Generation:
    """What a generation came to.

    ``stop`` is one of ``eos``, ``stop string``, ``max tokens``, ``context``, ``closed`` (the caller went away).
    ``decode_tokens`` counts decode steps: the first token comes out of the prefill.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stop: str = "closed"
    seed: int = 0

    @property
    def prefill_tokens_per_s(self) -> float:
        return (self.prompt_tokens - self.reused_tokens) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Decode steps per second spent in the model: printing is not counted, nor is sampling on the host."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


def generate(
    session: Session,
    tokens: Sequence[int],
    sampling: SamplingParams = GREEDY,
    max_tokens: int = 128,
    *,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
    reuse: bool = False,
    result: Generation | None = None,
) -> Generator[Token, None, Generation]:
    """Continues ``tokens`` (behind what the session has cached); yields each token as it is made.

    Args:
        stop: texts that end the answer; they are not part of it.
        reuse: ``tokens`` are the whole conversation: what the session has cached of its beginning is kept.
        ignore_eos: goes on after tokens that end a turn (for measuring).
        result: filled while it runs, for callers that stop early; also the generator's return value.

    Raises:
        UserError: an empty prompt, an empty stop string, or a prompt that does not fit.
    """
    out = Generation() if result is None else result
    answer = Answer(session.tokenizer, tokens, sampling, max_tokens, out, stop=stop, ignore_eos=ignore_eos)
    timings = session.timings
    seconds_before, decoded_before = timings.decode_seconds, timings.decode_tokens
    prefilled = timings.prefill_seconds
    started = time.perf_counter()
    if reuse:
        logits, out.reused_tokens = session.prefill_reusing(tokens)
    else:
        logits = session.prefill(tokens)
    out.prompt_tokens, out.prefill_seconds = len(tokens), timings.prefill_seconds - prefilled
    if answer.ended:  # no tokens are wanted
        return out
    token, text = answer.take(logits, not session.cache.has_room(_ONE_MORE))
    now = time.perf_counter()
    yield Token(token, text, now - started)
    # The first token came of the prompt's logits, which are here; the others may be drawn where theirs are.
    there = not answer.ended and session.draws(sampling)
    while not answer.ended:
        started = now
        if there:
            drawn = session.decode_drawn(token, answer.sampler)
            token, text = answer.add(drawn, not session.cache.has_room(_ONE_MORE))
        else:
            logits = session.decode(token)
            token, text = answer.take(logits, not session.cache.has_room(_ONE_MORE))
        out.decode_tokens = timings.decode_tokens - decoded_before
        out.decode_seconds = timings.decode_seconds - seconds_before
        now = time.perf_counter()
        yield Token(token, text, now - started)
    return out


class Answer:
    """An answer as it grows: samples each token, makes text of it, and knows when it ends.

    Attributes:
        out: what it has come to.
        ended: no more tokens are wanted.
        sampler: draws its tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int,
        out: Generation,
        *,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
    ) -> None:
        """Arguments and errors as for ``generate``."""
        if max_tokens < 0:
            raise UserError(f"{max_tokens}", where="max_tokens", accepted="a whole number from 0")
        stop = (stop,) if isinstance(stop, str) else stop
        if not all(stop):
            raise UserError("an empty stop string", where="stop", accepted="text")
        self.out, self.ended, self._most = out, not max_tokens, max_tokens
        self.sampler, self._history = Sampler(sampling), list(prompt)
        self._stream, self._held = TextStream(tokenizer), _Held(stop)
        self._stop_ids = frozenset() if ignore_eos else tokenizer.stop_ids
        out.seed = self.sampler.seed
        out.stop = "closed" if max_tokens else "max tokens"

    def take(self, logits: npt.NDArray[np.float32], full: bool) -> tuple[int, str]:
        """The next token, sampled from ``logits``, and the text that became printable with it; ``full``: its sequence
        has no room for it."""
        return self.add(self.sampler.sample(logits, self._history), full)

    def add(self, token: int, full: bool) -> tuple[int, str]:
        """The same with ``token``, which somebody else drew as the sampler would have."""
        out, held = self.out, self._held
        out.ids.append(token)
        eos, most = token in self._stop_ids, len(out.ids) == self._most
        text = "" if eos else held.push(self._stream.push(token))
        if not held.found and (eos or full or most):
            text += self._rest()
        out.text += text
        reasons = (("eos", eos), ("stop string", held.found), ("max tokens", most), ("context", full))
        reason = next((name for name, holds in reasons if holds), "")
        out.stop = reason or out.stop
        self.ended = bool(reason)
        self._history.append(token)
        return token, text

    def cut(self) -> None:
        """Ends the answer: it turned out that its sequence has no room for the last token."""
        self.out.text += self._rest()
        self.out.stop, self.ended = "context", True

    def _rest(self) -> str:
        """What is not shown yet and may be, now that nothing follows."""
        return self._held.push(self._stream.flush()) + self._held.flush()


class _Held:
    """Holds back text that may be the beginning of a stop string."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop, self._text, self.found = tuple(stop), "", False
        self._longest = max(map(len, self._stop), default=0)

    def push(self, text: str) -> str:
        """The part of all text so far that can be shown now."""
        if not self._stop:
            return text
        self._text += text
        ends = [at for at in (self._text.find(s) for s in self._stop) if at >= 0]
        if ends:
            self.found = True
            shown, self._text = self._text[: min(ends)], ""
            return shown
        keep = next(
            (n for n in range(min(len(self._text), self._longest - 1), 0, -1) if self._may_begin(self._text[-n:])), 0
        )
        shown, self._text = self._text[: len(self._text) - keep], self._text[len(self._text) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back and came to nothing."""
        shown, self._text = self._text, ""
        return shown

    def _may_begin(self, tail: str) -> bool:
        return any(s.startswith(tail) for s in self._stop)
