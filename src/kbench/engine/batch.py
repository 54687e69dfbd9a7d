"""Answers to several prompts at once."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .generate import Answer, Generation
from .sampling import GREEDY, SamplingParams
from .session import Session


def generate_batch(
    session: Session,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams = GREEDY,
    max_tokens: int = 128,
    *,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
    done: Callable[[int, Generation], None] | None = None,
    results: list[Generation] | None = None,
) -> list[Generation]:
    """Continues each of ``prompts``, as many at a time as the session has sequences, one token of each a step; when one
    ends, the next prompt takes its place. What the session held before is forgotten.

    Where the sequences share pages (``cache_tokens``) and none is left for a step, the answer that began last is put
    back: its tokens are prefilled again when another has ended. One that is alone ends there (``context``).

    Args:
        sampling: with a seed, prompt ``i`` draws with ``seed + i``.
        done: told each answer's number when it is complete.
        results: given the answers before the first begins, and filled while they run, for callers that stop early; also
            what is returned.

    Raises:
        UserError: as for ``generate``; nothing is made where a prompt is at fault.
    """
    answers = []
    for number, prompt in enumerate(prompts):
        seed = None if sampling.seed is None else sampling.seed + number
        own, out = dataclasses.replace(sampling, seed=seed), Generation(prompt_tokens=len(prompt))
        answers.append(Answer(session.tokenizer, prompt, own, max_tokens, out, stop=stop, ignore_eos=ignore_eos))
        session.check(prompt)
    outs = [] if results is None else results
    outs.extend(answer.out for answer in answers)
    session.reset()
    for prompt in prompts:
        session.cache.reserve({0: len(prompt)})
    free = [0, *(session.new_sequence() for _ in range(session.cache.shape.sequences - 1))][::-1]
    waiting = deque(enumerate(answers))
    running: dict[int, tuple[int, int]] = {}  # sequence -> its answer's number, and the token that is decoded next
    crowded = False  # an answer was put back, and none has ended since

    def took(number: int, sequence: int, logits: npt.NDArray[np.float32]) -> None:
        """Gives an answer its next logits; its token is decoded next, or its sequence is free."""
        answer = answers[number]
        token, _ = answer.take(logits, session.cache.is_full(sequence))
        running[sequence] = number, token
        if answer.ended:
            finish(number, sequence)

    def finish(number: int, sequence: int) -> None:
        nonlocal crowded
        crowded = False
        running.pop(sequence, None)
        session.truncate(0, sequence)
        free.append(sequence)
        if done is not None:
            done(number, answers[number].out)

    try:
        while waiting or running:
            while waiting and free and not crowded:
                number, answer = waiting[0]
                tokens = [*prompts[number], *answer.out.ids]
                has_room = session.cache.has_room({**dict.fromkeys(running, 1), free[-1]: len(tokens)})
                if running and not has_room:
                    break
                waiting.popleft()
                sequence, started = free.pop(), time.perf_counter()
                if not has_room:  # it was put back with a last token that no page is left for
                    answer.cut()
                    finish(number, sequence)
                    continue
                logits = session.prefill(tokens, sequence)
                seconds = time.perf_counter() - started
                if answer.out.ids:  # again: that is what its next token costs
                    answer.out.decode_seconds += seconds
                else:
                    answer.out.prefill_seconds = seconds
                if answer.ended:  # no tokens are wanted
                    finish(number, sequence)
                else:
                    took(number, sequence, logits)
            while running and not session.cache.has_room(dict.fromkeys(running, 1)):
                sequence, (number, _) = running.popitem()
                if not running:
                    answers[number].cut()
                    finish(number, sequence)
                    break
                session.truncate(0, sequence)
                free.append(sequence)
                waiting.appendleft((number, answers[number]))
                crowded = True
            if not running:
                continue
            step = list(running.items())
            started = time.perf_counter()
            rows = session.decode_batch([token for _, (_, token) in step], [sequence for sequence, _ in step])
            seconds = time.perf_counter() - started
            for (sequence, (number, _)), row in zip(step, rows, strict=True):
                out = answers[number].out
                out.decode_tokens, out.decode_seconds = out.decode_tokens + 1, out.decode_seconds + seconds
                took(number, sequence, row)
    finally:
        session.reset()  # the sequences are the caller's again, and their memory the system's
    return outs
