"""Several sequences, rings and windows in a session, for every architecture: against transformers, and each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deepseek_oracle import VARIANTS
from hf_oracle import relative_error

from kbench.core import CPU, Device, Placement, UserError
from kbench.engine import Generation, Session, generate, generate_batch, load_model
from kbench.kernels import implementations
from kbench.rules import load_rules

NATIVE = [item.name for item in implementations() if item.name.startswith("cpu.") and item.runnable().ok]
RUN = ["reference", *NATIVE[:1]]
MODELS = ["llama", "qwen2", "qwen3", "mixtral", "qwen2moe", "qwen3moe", "glm4moe", "gpt-oss", *VARIANTS]
# Float32 against float32 in other orders: see test_against_transformers.
TOLERANCE = 1e-5
# Of a smaller cache: a key or value that is off by 1e-7 may be rounded to the next number. Few are.
CACHED = {"f32": TOLERANCE, "f16": 2.0**-11, "bf16": 2.0**-8, "q8_0": 2.0**-7}
N_VOCAB = 150
LENGTHS, STEPS = (3, 29, 17), 6
Get = Callable[[str], tuple[Path, Any]]


@pytest.fixture(scope="module")
def get(tiny_models: dict[str, tuple[Path, Any]], tiny_deepseeks: dict[str, tuple[Path, Any]]) -> Get:
    return (tiny_models | tiny_deepseeks).__getitem__


def load(path: Path, implementation: str, **options: Any) -> Session:
    placement = Placement(generate_op=implementation, prefill_op=implementation)
    given = {"kv": "f32", "context": 64, "chunk": 16, "threads": 2, "default": placement} | options
    return load_model(path, **given)


def texts(seed: int, lengths: tuple[int, ...] = LENGTHS, steps: int = STEPS) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, N_VOCAB, n + steps).tolist() for n in lengths]


def theirs(model: Any, ids: list[int], window: int = 0) -> np.ndarray:
    """Logits by transformers; with a window, every layer sees so many tokens by an explicit mask."""
    options: dict[str, Any] = {}
    if window:
        i = torch.arange(len(ids))
        hidden = (i[None] > i[:, None]) | (i[None] <= i[:, None] - window)
        mask = torch.zeros(len(ids), len(ids)).masked_fill(hidden, torch.finfo(torch.float32).min)[None, None]
        options["attention_mask"] = mask
        if model.config.model_type == "gpt_oss":
            own = mask.masked_fill(i[None] <= i[:, None] - model.config.sliding_window, torch.finfo(torch.float32).min)
            options["attention_mask"] = {"full_attention": mask, "sliding_attention": own}
    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids]), use_cache=False, **options).logits[0].double().numpy())


def decode_together(session: Session, ids: list[list[int]], lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    """Each text's logits from its prompt's last token on; the sequences take turns at being first."""
    session.reset()
    numbers = [0, *(session.new_sequence() for _ in ids[1:])]
    rows = [[session.prefill(text[:n], s)] for text, n, s in zip(ids, lengths, numbers, strict=True)]
    for step in range(len(ids[0]) - lengths[0]):
        order = np.roll(np.arange(len(ids)), step).tolist()
        logits = session.decode_batch([ids[i][lengths[i] + step] for i in order], [numbers[i] for i in order])
        for i, row in zip(order, logits, strict=True):
            rows[i].append(row.copy())
    return [np.stack(row) for row in rows]


@pytest.mark.parametrize("implementation", RUN)
@pytest.mark.parametrize("name", MODELS)
def test_sequences_together_are_transformers_each_alone(get: Get, name: str, implementation: str) -> None:
    path, model = get(name)
    ids = texts(1)
    found = decode_together(load(path, implementation, sequences=3), ids)
    for text, n, logits in zip(ids, LENGTHS, found, strict=True):
        assert relative_error(logits, theirs(model, text)[n - 1 :]) <= TOLERANCE


@pytest.mark.parametrize("kv", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("name", ["qwen3", "gpt-oss", "v2-lite"])
def test_in_every_type_of_cache_each_is_what_it_is_alone(get: Get, name: str, kv: str) -> None:
    path, _ = get(name)
    ids = texts(2)
    session, single = load(path, RUN[-1], sequences=3, kv=kv), load(path, RUN[-1], kv=kv)
    for text, n, logits in zip(ids, LENGTHS, decode_together(session, ids), strict=True):
        single.reset()
        alone = [single.prefill(text[:n]).copy(), *(single.decode(token).copy() for token in text[n:])]
        assert relative_error(logits, np.stack(alone)) <= CACHED[kv]


@pytest.mark.parametrize("implementation", RUN)
@pytest.mark.parametrize("name", ["qwen3", "gpt-oss", "v2-lite"])
def test_a_ring_sees_the_last_tokens_of_the_context(get: Get, name: str, implementation: str) -> None:
    """Three times around, in chunks and single tokens, two sequences at once."""
    path, model = get(name)
    context, lengths = 20, (61, 40)
    ids = texts(3, lengths, 30)
    session = load(path, implementation, context=context, chunk=8, overflow="ring", sequences=2)
    for text, n, logits in zip(ids, lengths, decode_together(session, ids, lengths), strict=True):
        assert relative_error(logits, theirs(model, text, context)[n - 1 :]) <= TOLERANCE
    slots = session.cache.caches[0 if name != "gpt-oss" else 1].k.shape[2]
    assert slots == context + 8 - 1 and session.position == lengths[0] + 30
    session.reset()
    assert relative_error(session.logits(ids[0]), theirs(model, ids[0], context)) <= TOLERANCE
    session.reset()
    assert relative_error(session.trace(ids[0][:50])["logits"], theirs(model, ids[0][:50], context)) <= TOLERANCE


@pytest.mark.parametrize("kv", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("name", ["qwen3", "v2-lite"])
def test_a_ring_of_every_type_is_a_context_that_it_fits(get: Get, name: str, kv: str) -> None:
    """While nothing has left, ring or not makes no difference; afterwards logits are near those in float32."""
    path, _ = get(name)
    ids = texts(4, (50,), 0)[0]
    ring, stop = (load(path, RUN[-1], context=20, chunk=8, kv=kv, overflow=o) for o in ("ring", "stop"))
    np.testing.assert_array_equal(ring.prefill(ids[:20]), stop.prefill(ids[:20]))
    exact = load(path, RUN[-1], context=20, chunk=8, overflow="ring")
    rounding = {"f16": 2.0**-12, "bf16": 2.0**-9, "q8_0": 2.0**-8}[kv]
    assert 0 < relative_error(ring.prefill(ids[20:]), exact.prefill(ids)) <= 20 * rounding
    exact.reset()
    assert relative_error(ring.decode(7), (exact.prefill(ids), exact.decode(7))[1]) <= 20 * rounding


@pytest.mark.parametrize("threshold", [8, 40])
def test_a_ring_prefills_layer_by_layer(get: Get, tmp_path: Path, threshold: int) -> None:
    """Prompts beyond the context and over the threshold, which may be beyond the context, too."""
    path, _ = get("qwen3")
    rules = tmp_path / "layers.yaml"
    rules.write_text(
        f"- match: {{name: '^model$'}}\n  replace: {{class: Model, kwargs: {{per_layer_prefill_intput_threshold: "
        f"{threshold}}}}}\n"
    )
    ids = texts(6, (60,), 0)[0]
    plain = load(path, RUN[-1], context=20, chunk=8, overflow="ring")
    ring = load_model(path, load_rules(rules), context=20, chunk=8, threads=2, kv="f32", overflow="ring",
                      default=Placement(generate_op=RUN[-1], prefill_op=RUN[-1]))  # fmt: skip
    assert relative_error(ring.prefill(ids), plain.prefill(ids)) <= TOLERANCE and ring.position == 60


def test_layers_with_a_window_keep_no_more_than_it(get: Get) -> None:
    path, model = get("gpt-oss")
    session = load(path, RUN[-1], context=110, chunk=8)
    assert [session.cache.caches[layer].k.shape[2] for layer in range(3)] == [12 + 8 - 1, 110, 12 + 8 - 1]
    ids = texts(5, (100,), 0)[0]
    expected = session.logits(ids)
    assert relative_error(expected, theirs(model, ids)) <= TOLERANCE
    # What a turn back would need has left the window's layers: everything is run again, and is right.
    logits, kept = session.prefill_reusing(ids[:90])
    assert kept == 0 and relative_error(logits, expected[89]) <= TOLERANCE
    # A few tokens back nothing has been overwritten yet.
    logits, kept = session.prefill_reusing(ids[:86])
    assert kept == 85 and relative_error(logits, expected[85]) <= TOLERANCE
    logits, kept = session.prefill_reusing(ids)
    assert kept == 86 and relative_error(logits, expected[-1]) <= TOLERANCE
    with pytest.raises(UserError, match="have left the cache"):
        session.truncate(40)
    assert session.position == 100


def test_what_an_interrupted_step_wrote_over_has_left(
    get: Get, interrupt: Callable[[Session, Sequence[int]], None]
) -> None:
    """Ctrl-C comes when the native code returns: keys and values are written, and the step is not counted."""
    path, _ = get("qwen3")
    ids = texts(5, (38,), 0)[0]
    session, plain = (load(path, RUN[-1], context=20, chunk=8, overflow="ring") for _ in range(2))
    expected = plain.logits(ids[:31])
    session.prefill(ids[:30])
    interrupt(session, ids[30:])
    assert session.position == 30
    # Of 27 slots it wrote to those of positions 3 to 10. Whoever goes on sees 11 and later ones.
    logits, kept = session.prefill_reusing(ids[:31])
    assert kept == 30 and relative_error(logits, expected[30]) <= TOLERANCE
    # Position 25 would see 6 to 25.
    logits, kept = session.prefill_reusing(ids[:26])
    assert kept == 0 and relative_error(logits, expected[25]) <= TOLERANCE


def test_a_fork_goes_on_as_its_origin_would(get: Get) -> None:
    path, model = get("qwen3")
    prompt, *ends = texts(6, (20, 9, 9), 0)
    session = load(path, RUN[-1], sequences=3)
    session.prefill(prompt)
    made = [session.fork(), session.fork()]
    assert session.sequences == (0, *made) and session.ids_of(made[1]) == tuple(prompt)
    for i in range(9):
        logits = session.decode_batch([end[i] for end in ends], made)
    for end, row in zip(ends, logits, strict=True):
        assert relative_error(row, theirs(model, prompt + end)[-1]) <= TOLERANCE
    assert relative_error(session.decode(ends[0][0]), theirs(model, [*prompt, ends[0][0]])[-1]) <= TOLERANCE
    with pytest.raises(UserError, match="all 3 sequences are in use"):
        session.fork()
    session.free_sequence(made[0])
    assert session.sequences == (0, made[1]) and session.new_sequence() == made[0]
    assert relative_error(session.prefill(ends[1], made[0]), theirs(model, ends[1])[-1]) <= TOLERANCE
    session.reset()
    assert session.sequences == (0,) and session.position == 0


def test_what_a_batch_refuses_adds_nothing(get: Get) -> None:
    session = load(get("qwen3")[0], RUN[-1], sequences=2, context=10)
    other = session.new_sequence()
    session.prefill([1] * 10)
    for tokens, sequences, complaint in [
        ([1, 2], [0], "2 tokens for 1 sequences"),
        ([], [], "0 tokens"),
        ([1, 1], [other, other], f"sequence {other} twice"),
        ([1], [7], "sequence 7"),
        ([N_VOCAB], [other], f"token id {N_VOCAB}"),
        ([1, 1], [other, 0], "do not fit a context of 10"),
    ]:
        with pytest.raises(UserError, match=complaint):
            session.decode_batch(tokens, sequences)
    assert session.cache.position_of(other) == 0 and session.position == 10
    with pytest.raises(UserError, match=r"sequence 5 .* one in use: 0, 1"):
        session.prefill([1], 5)
    for options, complaint in [({"overflow": "wrap"}, "stop, ring"), ({"sequences": 0}, r"1\.\.1024")]:
        with pytest.raises(UserError, match=complaint):
            load(get("qwen3")[0], "reference", **options)


def test_memory_is_taken_as_tokens_come_and_given_back(get: Get) -> None:
    """Of 64 sequences with 4096 tokens' room each, one token makes a page a layer, head and side."""
    session = load(get("qwen3")[0], RUN[-1], sequences=64, context=4096, chunk=128)
    assert session.cache.n_bytes == 64 * 4096 * 3 * 2 * 2 * 32 * 4 == session.report.kv_bytes

    def resident() -> int:
        return (
            sum(
                int(line.split()[1])
                for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
                if line.startswith("Rss:")
            )
            << 10
        )

    others = [session.new_sequence() for _ in range(63)]
    session.decode_batch([1] * 63, others)
    before = resident()
    session.prefill([5] * 2000, others[5])
    filled = resident()
    assert 0.9 < (filled - before) / (2000 * 3 * 2 * 2 * 32 * 4) < 1.5
    session.free_sequence(others[5])
    assert filled - resident() > 0.9 * (filled - before)
    session.decode_batch([1], [others[6]])


def test_caches_follow_their_attention_sequence_by_sequence(get: Get) -> None:
    """Prompts on a device that the CPU stands for, decode on the CPU."""
    path, model = get("qwen3")
    placement = Placement(
        generate_device=CPU, generate_op=RUN[-1], prefill_device=Device("cuda", 0), prefill_op="torch"
    )
    for overflow, window in (("stop", 0), ("ring", 20)):
        session = load(path, "reference", default=placement, alias={Device("cuda", 0): CPU}, sequences=3,
                       context=64 if overflow == "stop" else 20, overflow=overflow, chunk=8)  # fmt: skip
        ids = texts(7)
        for text, n, logits in zip(ids, LENGTHS, decode_together(session, ids), strict=True):
            assert relative_error(logits, theirs(model, text, window)[n - 1 :]) <= TOLERANCE
        assert any(entry["what"] == "cache" for entry in session.traffic.plain())


def test_a_batch_of_prompts_is_answered_like_each_alone(get: Get) -> None:
    """Five prompts by turns in two sequences; one fills its context."""
    path, _ = get("qwen3")
    prompts = texts(8, (5, 40, 12, 3, 59), 0)
    done: list[int] = []
    session = load(path, RUN[-1], sequences=2)
    found = generate_batch(session, prompts, max_tokens=12, ignore_eos=True, done=lambda i, _: done.append(i))
    single = load(path, RUN[-1])
    for prompt, answer in zip(prompts, found, strict=True):
        single.reset()
        alone = Generation()
        list(generate(single, prompt, max_tokens=12, ignore_eos=True, result=alone))
        assert (answer.ids, answer.text, answer.stop) == (alone.ids, alone.text, alone.stop)
        assert answer.prompt_tokens == len(prompt) and answer.decode_tokens == alone.decode_tokens
    assert sorted(done) == list(range(5)) and [a.stop for a in found] == ["max tokens"] * 4 + ["context"]
    assert session.timings.decode_tokens == sum(answer.decode_tokens for answer in found)
    with pytest.raises(UserError, match="65 tokens do not fit a context of 64"):
        generate_batch(session, [[1], [1] * 65])
    assert [a.ids for a in generate_batch(session, [[1], [2]], max_tokens=0)] == [[], []]
    given: list[Generation] = []
    assert generate_batch(session, prompts[:2], max_tokens=2, results=given) is given and len(given) == 2
    assert session.sequences == (0,)  # the others are the caller's again


def test_a_ring_answers_beyond_its_context(get: Get) -> None:
    session = load(get("qwen3")[0], RUN[-1], context=20, chunk=8, overflow="ring")
    out = Generation()
    list(generate(session, [3] * 15, max_tokens=40, ignore_eos=True, result=out))
    assert out.stop == "max tokens" and len(out.ids) == 40 and session.position == 54
