"""Several sequences in one step, and caches that go around: against one sequence in a cache with room for all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from kbench.core import CPU, KV_TYPES, Attribute, OpCall, Problem, UserError, Value
from kbench.kernels import Cache, StepState, WeightData, implementation, implementations, random_weight
from kbench.kernels.cache import empty_rows

# What these tests look at is which values products are made of, not how they are rounded.
pytestmark = pytest.mark.usefixtures("float32_torch")
NAMES = [item.name for item in implementations() if item.runnable().ok and item.device_kind == "cpu"]
HEADS, KV_HEADS, D, KV_LORA, ROPE, NOPE = 6, 2, 32, 64, 32, 32
Floats = npt.NDArray[np.float32]
# Caches hold the same numbers whichever way they were filled: sums of 32 products in other orders remain.
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}


def problem(op: str, kv: str, tokens: int, context: int, window: int) -> Problem:
    common = {"heads": HEADS, "kv": kv, "tokens": tokens, "context": context, "window": window}
    if op == "attention":
        return Problem.make(op, kv_heads=KV_HEADS, d=D, **common)
    if op == "mla_attention":
        return Problem.make(op, kv_lora=KV_LORA, rope=ROPE, **common)
    return Problem.make(op, quant_k="F32", quant_v="F32", kv_lora=KV_LORA, rope=ROPE, nope=NOPE, v=D, **common)


def caches(op: str, kv: str, sequences: int, capacity: int) -> dict[int, Cache]:
    latent = op != "attention"
    heads, d = (1, KV_LORA + ROPE) if latent else (KV_HEADS, D)
    rows = [np.stack([empty_rows(kv, heads, capacity, width)] * sequences) for width in (d, 0 if latent else d)]
    for stored in rows:
        stored.view(np.uint8)[:] = 0x7C  # huge numbers or NaN: whoever attends to an unused slot is far off
    return {0: Cache(rows[0], rows[1], kv)}


def inputs(op: str, tokens: int, seed: int) -> list[Floats]:
    rng = np.random.default_rng(seed)
    widths = {
        "attention": [HEADS * D, KV_HEADS * D, KV_HEADS * D],
        "mla_attention": [HEADS * (KV_LORA + ROPE), KV_LORA + ROPE],
        "mla_decompressed": [HEADS * (NOPE + ROPE), KV_LORA + ROPE],
    }[op]
    return [rng.standard_normal((tokens, width)).astype(np.float32) for width in widths]


WEIGHTS = {
    "attention": [random_weight("sinks", "F32", (HEADS,), np.random.default_rng(1), 1.0)],
    "mla_attention": [],
    "mla_decompressed": [random_weight("kv_b", "F32", (KV_LORA, HEADS * (NOPE + D)), np.random.default_rng(2))],
}


def step(op: str, name: str, kv: str, state: StepState, x: Sequence[Floats], window: int, threads: int = 2) -> Floats:
    weights: list[WeightData] = WEIGHTS[op]
    ask = problem(op, kv, len(x[0]), int(state.positions.max()) + 1, window)
    attrs: dict[str, Attribute] = {"layer": 0, "scale": 0.2}
    width = HEADS * (KV_LORA if op == "mla_attention" else D)
    call = OpCall(op, ask, name, CPU, "m", tuple(f"x{i}" for i in range(len(x))), (Value("y", width),),
                  tuple(w.name for w in weights), attrs)  # fmt: skip
    item = implementation(name)
    return item.run(call, item.prepare(ask, weights), list(x), state, threads)[0].copy()


def alone(op: str, kv: str, x: Sequence[Floats], window: int) -> Floats:
    """The definition, in one step, with a slot for every position: hidden ones are masked out explicitly."""
    tokens = len(x[0])
    state = StepState(np.zeros(tokens, np.int32), 0, caches(op, kv, 1, tokens))
    return step(op, "reference", kv, state, x, window)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("op", WEIGHTS)
def test_a_ring_forgets_what_no_token_sees_and_nothing_else(op: str, name: str, kv: str) -> None:
    """A window of 24 and chunks of up to 16 in 24 + 16 - 1 slots, several times around."""
    window, chunks = 24, [16, 16, 1, 5, 16, 1, 1, 16, 16, 9, 16, 16, 1, 2, 16, 16, 16, 1]
    x = inputs(op, sum(chunks), 3)
    held, pieces, position = caches(op, kv, 1, window + 16 - 1), [], 0
    for n in chunks:
        state = StepState(np.zeros(n, np.int32), position, held)
        pieces.append(step(op, name, kv, state, [a[position : position + n] for a in x], window))
        position += n
    np.testing.assert_allclose(np.concatenate(pieces), alone(op, kv, x, window), **TOLERANCE)
    for n, slots in ((17, 39), (16, 38)):  # the last of them would overwrite what the first one sees
        state = StepState(np.zeros(n, np.int32), position, caches(op, kv, 1, slots))
        with pytest.raises((UserError, ValueError), match=r"full|cache of"):
            step(op, name, kv, state, inputs(op, n, 4), window)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("op", ["attention", "mla_attention"])
def test_sequences_in_one_step_are_each_alone(op: str, window: int, name: str, kv: str) -> None:
    lengths = {2: 61, 0: 7, 3: 30}  # sequence 1 is never used
    x = {s: inputs(op, n, 10 + s) for s, n in lengths.items()}
    held = caches(op, kv, 4, 64 if not window else window + 12 - 1)
    done, found = dict.fromkeys(lengths, 0), {s: [] for s in lengths}
    for sizes in (
        {2: 12},
        {0: 1, 2: 12},
        {3: 9},
        {2: 11, 3: 3, 0: 4},
        *[{2: 1, 0: 1, 3: 1}] * 2,
        {2: 12, 3: 12},
        {2: 12, 3: 4},
    ):
        order = list(sizes)
        spans = np.array([(s, done[s], sizes[s]) for s in order], np.int64)
        rows = [np.concatenate([x[s][i][done[s] : done[s] + sizes[s]] for s in order]) for i in range(len(x[2]))]
        state = StepState(np.zeros(len(rows[0]), np.int32), 0, held, spans)
        y = np.split(step(op, name, kv, state, rows, window, threads=3), np.cumsum(spans[:, 2])[:-1])
        for s, part in zip(order, y, strict=True):
            found[s].append(part)
            done[s] += sizes[s]
    assert done == lengths
    for s in lengths:
        np.testing.assert_allclose(np.concatenate(found[s]), alone(op, kv, x[s], window), **TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_rope_turns_each_token_by_its_own_position(name: str) -> None:
    item, ask = implementation(name), Problem.make("rope", heads=3, d=16, tokens=6)
    call = OpCall("rope", ask, name, CPU, "m", ("x",), (Value("y", 48),), (), {"mode": "neox", "head_dim": 16})
    x = np.random.default_rng(0).standard_normal((6, 48)).astype(np.float32)
    spans = np.array([(4, 100, 2), (0, 3, 1), (1, 0, 3)], np.int64)
    y = item.run(call, item.prepare(ask, []), [x], StepState(np.zeros(6, np.int32), 0, {}, spans), 2)[0]
    row = 0
    for _, position, n in spans.tolist():
        state = StepState(np.zeros(n, np.int32), position)
        one = OpCall("rope", ask.replace(tokens=n), name, CPU, "m", ("x",), (Value("y", 48),), (), call.attrs)
        np.testing.assert_array_equal(
            y[row : row + n], item.run(one, item.prepare(ask, []), [x[row : row + n]], state, 1)[0]
        )
        row += n


@pytest.mark.parametrize(
    ("spans", "complaint"),
    [
        ([(-1, 0, 3)], "sequence is -1"),
        ([(0, 0, 2), (1, 0, 2)], "tokens are not the run's 3"),
        ([(0, 0, 3), (1, 0, 3)], "tokens are not the run's 3"),
        ([(0, 0, 2)], "tokens are not the run's 3"),
        ([(0, 0, 3), (1, 0, 0)], "tokens are not the run's 3"),
        ([(0, 0, 1), (0, 1, 2)], "sequence 0 twice"),
        ([(0, -1, 3)], "position is -1"),
        ([(0, 2**50, 3)], "position is"),
        ([(2, 0, 3)], "sequence 2; the cache has 2"),
        ([(0, 0, 1), (1, 0, 1), (2, 0, 1)], "3 sequences; this program takes 1 to 2"),
        ([(1, 6, 3)], "3 tokens at position 6, capacity 8"),
    ],
)
def test_a_program_refuses_spans_that_do_not_fit(spans: list[tuple[int, int, int]], complaint: str) -> None:
    native = pytest.importorskip("kbench.kernels.cpu._native")
    raw = np.zeros(4 * 4096 + 64, np.uint8)
    arena = raw[-raw.ctypes.data % 64 :][: 4 * 4096]
    program = native.Program(native.Pool(1), arena, 3, 2)
    cache = np.zeros((2, 1, 8, 16), np.float32)
    program.attention("scalar", 0, 4096, 4096, 8192, 2, 1, 16, cache, cache.copy(), 1.0)
    with pytest.raises(ValueError, match=complaint):
        program.run(np.zeros(3, np.int32), np.array(spans, np.int64))
    program.run(np.zeros(3, np.int32), np.array([(1, 0, 2), (0, 5, 1)], np.int64))
