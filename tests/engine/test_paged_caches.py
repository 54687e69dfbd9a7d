"""Caches in pages in a session, on a device that the CPU stands for: the logits of caches side by side, forks that take
no pages, and what happens when there are none left. Pages that hold nothing hold no numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_oracle import relative_error

from kbench.core import CPU, Device, Placement, UserError
from kbench.engine import Generation, Session, generate, generate_batch, load_model
from kbench.engine.placed_caches import PlacedCaches
from kbench.engine.planned import PlannedExecutable
from kbench.kernels import PAGE_TOKENS

torch = pytest.importorskip("torch")
GPU = Device("cuda", 0)
N_VOCAB = 150
# The same products of the same numbers, cut out of memory otherwise: float32 sums in other orders.
TOLERANCE = 1e-5
MODELS = ["qwen3", "gpt-oss", "v2-lite"]
Get = Callable[[str], Path]


@pytest.fixture(scope="module")
def get(tiny_models: dict[str, tuple[Path, Any]], tiny_deepseeks: dict[str, tuple[Path, Any]]) -> Get:
    made = tiny_models | tiny_deepseeks
    return lambda name: made[name][0]


def load(path: Path, device: Device = GPU, **options: Any) -> Session:
    placement = Placement(device, "torch", device, "torch")
    given = {"kv": "f32", "context": 300, "chunk": 16, "threads": 1, "default": placement} | options
    session = load_model(path, alias={GPU: CPU}, **given)
    if device == GPU:
        poison(session)
    return session


def caches(session: Session) -> PlacedCaches:
    assert isinstance(session.cache, PlacedCaches) and session.cache.pools
    return session.cache


def poison(session: Session) -> None:
    """Pages that are nobody's hold no numbers."""
    for pool in caches(session).pools.values():
        nobodys = np.flatnonzero(pool.table.owners == 0)
        for cache in pool.caches.values():
            for stored in (cache.k, cache.v):
                pages = stored.view(len(stored), stored.shape[1] // PAGE_TOKENS, PAGE_TOKENS, stored.shape[2])
                pages[:, nobodys] = 255 if stored.dtype == torch.uint8 else float("nan")


def used(session: Session) -> list[int]:
    """Pages that are somebody's, by pool."""
    return [int((pool.table.owners > 0).sum()) for pool in caches(session).pools.values()]


def ids(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


def course(session: Session, seed: int = 1) -> list[np.ndarray]:
    """Logits of prompts and tokens over the borders of pages, going back, and going on."""
    found = [session.prefill(ids(seed, 61))]
    found += [session.decode(token).copy() for token in ids(seed + 1, 6)]
    found.append(session.prefill(ids(seed + 2, 63)))
    session.truncate(session.position - 5)
    found += [session.decode(token).copy() for token in ids(seed + 3, 7)]
    return [*found, *session.logits(ids(seed + 4, 20))]


@pytest.mark.parametrize("kv", ["f32", "q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_in_pages_a_model_says_what_it_says_without(get: Get, name: str, kv: str) -> None:
    session = load(get(name), kv=kv)
    assert isinstance(session._decode, PlannedExecutable), "positions that the device tells"
    # A number that is off in its last place may be rounded to the next one of a smaller cache.
    tolerance = TOLERANCE if kv == "f32" else 2.0**-7
    for found, right in zip(course(session), course(load(get(name), CPU, kv=kv)), strict=True):
        assert relative_error(found, right) <= tolerance


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_ring_of_pages_goes_around(get: Get, name: str, graph: bool) -> None:
    """Three laps, in chunks and single tokens; of what left nothing is seen."""
    options = {"context": 100, "overflow": "ring", "graph": graph}
    session, plain = load(get(name), **options), load(get(name), CPU, **options)
    for n in (90, 64, 130):
        assert relative_error(session.prefill(ids(n, n)), plain.prefill(ids(n, n))) <= TOLERANCE
        for token in ids(n + 1, 14):
            assert relative_error(session.decode(token), plain.decode(token)) <= TOLERANCE
    (whole,) = [key for key in caches(session).pools if key[2] == 2]  # 100 + 16 - 1 tokens
    assert caches(session).pools[whole].table.n_free == 0
    session.reset()
    assert not any(used(session))


@pytest.mark.parametrize("name", MODELS)
def test_a_fork_takes_no_pages_until_it_goes_its_own_way(get: Get, name: str) -> None:
    session, plain = load(get(name), sequences=3), load(get(name), CPU, sequences=3)
    prompt = ids(7, 100)
    assert relative_error(session.prefill(prompt), plain.prefill(prompt)) <= TOLERANCE
    taken = used(session)
    made = [session.fork(), session.fork()]
    assert [plain.fork(), plain.fork()] == made and used(session) == taken
    for step in range(40):
        poison(session)
        tokens = ids(step, 3)
        found, right = (one.decode_batch(tokens, [0, *made]) for one in (session, plain))
        assert relative_error(found, right) <= TOLERANCE
        if name != "gpt-oss":  # which has a pool more, of layers with a window
            # The first 64 tokens are all theirs; each has the page of its last ones, from position 128 on one more.
            assert used(session) == [1 + 3 + 3 * (100 + step >= 128)]
    back = 135 if name == "gpt-oss" else 70  # its windows keep no more
    session.truncate(back, made[0])
    plain.truncate(back, made[0])
    session.free_sequence(made[1])
    plain.free_sequence(made[1])
    poison(session)
    again = ids(99, 2)
    found, right = (one.decode_batch(again, [0, made[0]]) for one in (session, plain))
    assert relative_error(found, right) <= TOLERANCE
    session.reset()
    assert not any(used(session))


def test_where_pages_are_short_nothing_is_added(get: Get) -> None:
    session = load(get("qwen3"), sequences=3, cache_tokens=4 * PAGE_TOKENS - 1)
    assert session.report.kv_bytes == session.cache.n_bytes == 4 * PAGE_TOKENS * 3 * 2 * 2 * 32 * 4
    session.prefill(ids(1, 128))
    other, third = session.fork(), session.new_sequence()
    with pytest.raises(UserError, match="3 pages of 64 tokens are needed and 2 of 4 are free: 1 short") as caught:
        session.prefill(ids(2, 129), third)
    assert "cache of cuda:0" in str(caught.value) and "cache_tokens" in str(caught.value)
    assert session.cache.position_of(third) == 0 and used(session) == [2]
    # Each of the three alone would find a page.
    with pytest.raises(UserError, match="3 pages of 64 tokens are needed and 2 of 4"):
        session.decode_batch([1, 2, 3], [0, other, third])
    assert [session.cache.position_of(s) for s in (0, other, third)] == [128, 128, 0]
    session.free_sequence(other)
    found = session.prefill(ids(2, 128), third)
    assert relative_error(found, load(get("qwen3"), CPU).prefill(ids(2, 128))) <= TOLERANCE
    session.truncate(64)
    assert used(session) == [3]
    with pytest.raises(UserError, match=r"1\.\.16777216"):
        load(get("qwen3"), cache_tokens=0)


def answers(session: Session, prompts: list[list[int]], n: int) -> list[tuple[list[int], str]]:
    return [(out.ids, out.stop) for out in generate_batch(session, prompts, max_tokens=n, ignore_eos=True)]


def test_where_pages_run_short_answers_wait_for_each_other(get: Get) -> None:
    """What is put back is prefilled again, and goes on as if it had been let through; then all pages are free."""
    prompts, n = [ids(1, 60), ids(2, 100), ids(3, 5)], 70
    right = answers(load(get("qwen3"), sequences=3), prompts, n)
    assert [stop for _, stop in right] == ["max tokens"] * 3
    for pages in (3, 4, 5):  # the three together come to need 3 + 3 + 2; the second alone fills 3
        session = load(get("qwen3"), sequences=3, cache_tokens=pages * PAGE_TOKENS)
        prefilled = session.timings.prefill_tokens
        assert answers(session, prompts, n) == right
        again = session.timings.prefill_tokens - prefilled - sum(map(len, prompts))
        assert again > 0, "somebody was put back"
        assert session.sequences == (0,) and used(session) == [0]


def test_an_answer_ends_where_its_pages_do(get: Get) -> None:
    session = load(get("qwen3"), sequences=2, cache_tokens=2 * PAGE_TOKENS)
    alone = Generation()
    list(generate(session, ids(1, 100), max_tokens=50, ignore_eos=True, result=alone))
    # 100 and 28 fill two pages; the last token of all is not written.
    assert (len(alone.ids), alone.stop, session.position) == (29, "context", 128)
    assert answers(session, [ids(1, 100), ids(1, 100)], 50) == [(alone.ids, "context")] * 2
    # They begin together, a page each; the second is put back, and is alone when its second page is full.
    short = ids(1, 10)
    (first, stop), (second, second_stop) = answers(session, [short, short], 200)
    assert first == second and len(first) == 119 and stop == second_stop == "context"
    with pytest.raises(UserError, match="3 pages of 64 tokens are needed and 2 of 2 are free: 1 short"):
        generate_batch(session, [short, ids(1, 129)], done=lambda *_: pytest.fail("an answer was made"))


@pytest.mark.parametrize("name", MODELS)
def test_what_moves_between_pages_and_rows_side_by_side(get: Get, name: str) -> None:
    """Prompts on the device, decode on the CPU, and back: two sequences, a fork, over the borders of pages."""
    apart = Placement(CPU, "reference", GPU, "torch")
    session = load(get(name), sequences=3, default=apart)
    plain = load(get(name), CPU, sequences=3)
    for one in (session, plain):
        one.new_sequence()
    for sequence, n in ((0, 70), (1, 60)):
        right = plain.prefill(ids(n, n), sequence)
        assert relative_error(session.prefill(ids(n, n), sequence), right) <= TOLERANCE
    assert session.fork(1) == plain.fork(1) == 2
    for step in range(8):
        found, right = (one.decode_batch(ids(step, 3), [0, 1, 2]) for one in (session, plain))
        assert relative_error(found, right) <= TOLERANCE
    poison(session)
    for sequence, n in ((2, 9), (0, 66), (1, 1)):
        right = plain.prefill(ids(n, n), sequence)
        assert relative_error(session.prefill(ids(n, n), sequence), right) <= TOLERANCE
    assert any(entry["what"] == "cache" for entry in session.traffic.plain())


def test_what_an_interrupted_step_wrote_is_not_taken_for_right(
    get: Get, interrupt: Callable[[Session, Sequence[int]], None]
) -> None:
    """Ctrl-C comes when a prefill on the device has written. What the CPU decodes then is brought there after all."""
    session = load(get("qwen3"), default=Placement(CPU, "reference", GPU, "torch"))
    plain = load(get("qwen3"), CPU)
    for one in (session, plain):
        one.prefill(ids(1, 20))
        one.decode(3)
    interrupt(session, ids(2, 16))
    for token in (4, 5):
        assert relative_error(session.decode(token), plain.decode(token)) <= TOLERANCE
    assert relative_error(session.prefill(ids(3, 9)), plain.prefill(ids(3, 9))) <= TOLERANCE
