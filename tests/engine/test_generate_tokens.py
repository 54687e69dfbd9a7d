"""Generation: what ends it, what it counts, what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbench.core import Placement, UserError
from kbench.engine import Generation, SamplingParams, Session, generate, load_model


@pytest.fixture(scope="module")
def session(tiny_models: dict[str, tuple[Path, Any]]) -> Session:
    reference = Placement(generate_op="reference", prefill_op="reference")
    return load_model(tiny_models["llama"][0], default=reference, context=48, kv="f32", chunk=16)


@pytest.fixture(autouse=True)
def fresh(session: Session) -> None:
    session.reset()


PROMPT = [40, 50, 60]


def run(session: Session, *args: Any, **options: Any) -> tuple[list[Any], Generation]:
    result = Generation()
    return list(generate(session, *args, result=result, **options)), result


def greedy(session: Session, n: int) -> list[int]:
    """What greedy decoding gives, one full prefill per token."""
    ids = list(PROMPT)
    for _ in range(n):
        session.reset()
        ids.append(int(np.argmax(session.prefill(ids))))
    session.reset()
    return ids[len(PROMPT) :]


def test_greedy_takes_the_likeliest_each_time(session: Session) -> None:
    expected = greedy(session, 10)
    tokens, result = run(session, PROMPT, max_tokens=10, ignore_eos=True)
    assert [token.id for token in tokens] == result.ids == expected
    assert "".join(token.text for token in tokens) == result.text == session.tokenizer.decode(expected)


def test_n_tokens_take_one_prefill_and_n_minus_one_steps(session: Session) -> None:
    session.timings.clear()
    _, result = run(session, PROMPT, max_tokens=8, ignore_eos=True)
    assert (result.prompt_tokens, result.decode_tokens, len(result.ids)) == (3, 7, 8)
    assert session.timings.decode_tokens == 7 and session.position == 10
    assert result.stop == "max tokens"
    assert result.decode_tokens_per_s == pytest.approx(7 / result.decode_seconds)
    assert result.prefill_tokens_per_s == pytest.approx(3 / result.prefill_seconds)


def test_no_tokens_are_no_tokens(session: Session) -> None:
    tokens, result = run(session, PROMPT, max_tokens=0)
    assert tokens == [] and result.stop == "max tokens" and session.position == 3


def test_the_end_of_the_context_ends_it(session: Session) -> None:
    tokens, result = run(session, PROMPT, max_tokens=1000, ignore_eos=True)
    # 45 steps fill the cache behind the prompt; the last one's logits still give a token.
    assert len(tokens) == 46 and result.stop == "context" and session.position == 48


def test_an_end_token_ends_it_and_is_not_shown(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = greedy(session, 6)
    end = next(i for i in range(2, 6) if ids[i] not in ids[:i])
    monkeypatch.setattr(session.tokenizer, "stop_ids", frozenset({ids[end]}))
    tokens, result = run(session, PROMPT, max_tokens=20)
    assert result.stop == "eos" and result.ids == ids[: end + 1] and tokens[-1].text == ""
    assert result.text == session.tokenizer.decode(ids[:end])
    session.reset()
    _, unbound = run(session, PROMPT, max_tokens=6, ignore_eos=True)
    assert unbound.ids == ids


def test_a_stop_string_ends_it_even_across_tokens_and_is_not_shown(session: Session) -> None:
    whole = run(session, PROMPT, max_tokens=12, ignore_eos=True)[1].text
    assert len(whole) >= 8
    stop = whole[4:7]
    at = whole.index(stop)
    session.reset()
    tokens, result = run(session, PROMPT, max_tokens=12, ignore_eos=True, stop=["never there", stop])
    assert result.stop == "stop string"
    assert result.text == "".join(token.text for token in tokens) == whole[:at]
    session.reset()
    assert run(session, PROMPT, max_tokens=12, ignore_eos=True, stop=stop)[1].text == whole[:at], "one string is one"


def test_what_looked_like_a_stop_string_is_shown_after_all(session: Session) -> None:
    whole = run(session, PROMPT, max_tokens=12, ignore_eos=True)[1].text
    session.reset()
    tokens, result = run(session, PROMPT, max_tokens=12, ignore_eos=True, stop=[whole[-2:] + "x", whole[3:5] + "\0"])
    assert "".join(token.text for token in tokens) == result.text == whole


def test_a_caller_that_goes_away_leaves_a_usable_session(session: Session) -> None:
    result = Generation()
    answer = generate(session, PROMPT, max_tokens=20, ignore_eos=True, result=result)
    first = [next(answer).id for _ in range(5)]
    answer.close()
    assert result.ids == first and result.stop == "closed"
    # Four of the five were fed back; going on from there gives the sixth.
    assert session.cached_ids == (*PROMPT, *first[:4])
    assert int(np.argmax(session.decode(first[4]))) == greedy(session, 6)[5]


def test_a_penalty_sees_the_prompt_and_what_was_made(session: Session) -> None:
    penalty = SamplingParams(temperature=0.0, repetition_penalty=1e6)
    ids = run(session, PROMPT, penalty, max_tokens=30, ignore_eos=True)[1].ids
    assert len(set(ids) | set(PROMPT)) == 33


def test_one_seed_one_text(session: Session) -> None:
    hot = SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=11)
    texts = []
    for _ in range(2):
        session.reset()
        texts.append(run(session, PROMPT, hot, max_tokens=12, ignore_eos=True)[1].ids)
    assert texts[0] == texts[1] != greedy(session, 12)


@pytest.mark.parametrize(
    ("options", "where"), [({"max_tokens": -1}, "max_tokens"), ({"stop": ["a", ""]}, "stop"), ({}, "prompt")]
)
def test_nonsense_is_refused(session: Session, options: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError) as caught:
        run(session, [] if where == "prompt" else PROMPT, **options)
    assert caught.value.where == where and session.position == 0
