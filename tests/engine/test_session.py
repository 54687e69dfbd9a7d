"""A session's promises, whatever implementation runs it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbench.core import Placement, Unsupported, UserError
from kbench.engine import Session, load_model
from kbench.kernels import implementations

# How far two ways through the same arithmetic may be apart, norm-wise: float32 sums in other orders (see
# test_against_transformers). Native matrices in float32 multiply in float32 too.
SAME = 1e-5

RUNNABLE = [item.name for item in implementations() if item.runnable().ok and item.device_kind == "cpu"]
IDS = np.random.default_rng(3).integers(0, 150, 60).tolist()


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def load(path: Path, name: str = "reference", **options: Any) -> Session:
    options = {"kv": "f32", "context": 64, "chunk": 16, "threads": 2} | options
    return load_model(path, default=Placement(generate_op=name, prefill_op=name), **options)


@pytest.fixture(scope="module", params=RUNNABLE)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def path(request: pytest.FixtureRequest, tiny_models: dict[str, tuple[Path, Any]]) -> Path:
    return tiny_models[request.param][0]


@pytest.fixture(scope="module")
def session(path: Path, name: str) -> Session:
    return load(path, name)


@pytest.fixture(scope="module")
def expected(path: Path) -> np.ndarray:
    """The reference's logits after each token, in one step."""
    return load(path, chunk=64).logits(IDS)


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    if "session" in request.fixturenames:
        request.getfixturevalue("session").reset()


def test_every_call_runs_on_what_was_asked_for(session: Session, name: str) -> None:
    calls = session.decode_calls + session.prefill_calls
    assert {call.implementation for call in calls} == {name}


def test_all_logits_are_the_references(session: Session, expected: np.ndarray) -> None:
    found = session.logits(IDS)
    assert found.shape == (60, 150) and found.dtype == np.float32
    assert apart(found, expected) <= SAME


@pytest.mark.parametrize("sizes", [[60], [1, 59], [16, 16, 16, 12], [15, 17, 28], [30, 1, 1, 28]])
def test_prefill_in_pieces_ends_where_one_step_ends(session: Session, expected: np.ndarray, sizes: list[int]) -> None:
    begin = 0
    for size in sizes:
        logits = session.prefill(IDS[begin : begin + size])
        begin += size
        assert session.position == begin
        assert apart(logits, expected[begin - 1]) <= SAME


def test_decode_goes_on_where_prefill_stopped(session: Session, expected: np.ndarray) -> None:
    session.prefill(IDS[:21])
    for i in range(21, 60):
        assert apart(session.decode(IDS[i]), expected[i]) <= SAME
    assert session.cached_ids == tuple(IDS)


def test_reset_and_truncate_leave_no_trace(session: Session, expected: np.ndarray) -> None:
    session.prefill([7] * 50)
    session.reset()
    session.prefill(IDS[:30])
    session.prefill([9] * 20)
    session.truncate(25)
    assert apart(session.prefill(IDS[25:40]), expected[39]) <= SAME
    with pytest.raises(ValueError):
        session.truncate(41)


def test_a_conversations_beginning_is_not_run_again(session: Session, expected: np.ndarray) -> None:
    session.prefill(IDS[:30])
    logits, kept = session.prefill_reusing(IDS[:40])
    assert kept == 30 and apart(logits, expected[39]) <= SAME
    # Another end: only the common beginning is kept.
    session.reset()
    session.prefill([*IDS[:20], (IDS[20] + 1) % 150, 5, 5])
    logits, kept = session.prefill_reusing(IDS[:40])
    assert kept == 20 and session.position == 40 and apart(logits, expected[39]) <= SAME
    # The same once more: the last token is run for its logits.
    logits, kept = session.prefill_reusing(IDS[:40])
    assert kept == 39 and apart(logits, expected[39]) <= SAME
    before = session.cached_ids
    with pytest.raises(UserError, match="65 tokens do not fit a context of 64"):
        session.prefill_reusing([1] * 65)
    assert session.cached_ids == before


def test_a_full_context_says_so_and_changes_nothing(session: Session, expected: np.ndarray) -> None:
    session.prefill(IDS[:50])
    with pytest.raises(UserError, match="50 tokens are cached and 15 more do not fit a context of 64") as caught:
        session.prefill([1] * 15)
    assert "--context 65" in caught.value.todo and session.position == 50
    session.prefill([*IDS[50:], 1, 1, 1, 1])
    with pytest.raises(UserError, match="context of 64"):
        session.decode(1)
    session.truncate(50)
    assert apart(session.prefill(IDS[50:]), expected[59]) <= SAME


@pytest.mark.parametrize("bad", [-1, 150, 2**31, 2**40])
def test_ids_outside_the_vocabulary_are_refused(session: Session, bad: int) -> None:
    for attempt in (lambda: session.prefill([1, bad]), lambda: session.decode(bad), lambda: session.logits([bad])):
        with pytest.raises(UserError, match=f"token id {bad}"):
            attempt()
    with pytest.raises(UserError, match="no tokens"):
        session.prefill([])
    assert session.position == 0


def test_a_profile_has_seconds_for_every_call_and_is_a_step_like_any(session: Session, expected: np.ndarray) -> None:
    session.prefill(IDS[:10])
    profile = session.profile(IDS[10])
    assert [call for call, _ in profile] == list(session.decode_calls)
    assert all(seconds >= 0 for _, seconds in profile) and sum(seconds for _, seconds in profile) > 0
    assert apart(session.decode(IDS[11]), expected[11]) <= SAME


def test_timings_count_every_token_once(session: Session) -> None:
    session.timings.clear()
    session.prefill(IDS[:33])
    for token in IDS[33:40]:
        session.decode(token)
    timings = session.timings
    assert (timings.prefill_tokens, timings.decode_tokens) == (33, 7)
    assert timings.prefill_seconds > 0 and timings.decode_seconds > 0


@pytest.mark.parametrize(
    ("kv", "bits", "rounding"), [("f16", 16, 2.0**-12), ("bf16", 16, 2.0**-9), ("q8_0", 8.5, 2.0**-8)]
)
def test_a_smaller_cache_costs_less_and_stays_close(
    path: Path, name: str, expected: np.ndarray, kv: str, bits: float, rounding: float
) -> None:
    full = load(path, name)
    if kv == "q8_0" and full.descriptor.head_dim % 32:
        with pytest.raises(Unsupported, match="q8_0 cache of vectors of 16 · accepted: multiples of 32"):
            load(path, name, kv=kv)
        return
    small = load(path, name, kv=kv)
    assert small.cache.n_bytes * 32 == full.cache.n_bytes * bits and small.cache.n_bytes == small.report.kv_bytes
    # Keys and values are off by `rounding` on average each (q8_0: half a step of the largest / 127, against its own
    # size), logits by at most some ten times that after three layers.
    assert 0 < apart(small.logits(IDS), expected) <= 10 * rounding


def test_modules_may_run_on_different_implementations(path: Path, name: str, expected: np.ndarray) -> None:
    """A Python operator inside a run of others is a break between programs; values cross over."""
    placement = Placement(generate_op=name, prefill_op=name)
    other = dataclasses.replace(placement, generate_op="reference", prefill_op="reference")
    modules = ("model.layers.1.mlp.up_proj", "model.layers.0.self_attn", "model.layers.2.post_attention_layernorm")
    session = load_model(path, dict.fromkeys(modules, other), default=placement, kv="f32", context=64, chunk=16)
    found = {call.module: call.implementation for call in session.decode_calls}
    assert {found[module] for module in modules} == {"reference"} and found["lm_head"] == name
    session.prefill(IDS[:21])
    for i in range(21, 30):
        assert apart(session.decode(IDS[i]), expected[i]) <= SAME


def test_phases_may_run_on_different_implementations(path: Path, name: str, expected: np.ndarray) -> None:
    placement = Placement(generate_op=name, prefill_op="torch")
    session = load_model(path, default=placement, kv="f32", context=64, chunk=16)
    assert apart(session.prefill(IDS[:21]), expected[20]) <= 20 * SAME
    assert apart(session.decode(IDS[21]), expected[21]) <= 20 * SAME
