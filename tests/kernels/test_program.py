"""Programs of many steps: equal to their steps one by one, deterministic, and with barriers only where needed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

native = pytest.importorskip("kbench.kernels.cpu._native")

ISAS = [name for name, missing in native.isas() if not missing]
ISA = ISAS[-1]
POOLS = {threads: native.Pool(threads) for threads in (1, 2, 3)}
thread_counts = pytest.mark.parametrize("threads", list(POOLS))

D, FFN, HEADS, KV_HEADS, HEAD = 96, 160, 6, 2, 16
VOCAB, CAPACITY = 40, 80


def aligned(n_bytes: int) -> np.ndarray:
    raw = np.zeros(n_bytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + n_bytes]


def q8_0(rng: np.random.Generator, n: int, k: int) -> object:
    raw = rng.integers(0, 256, (n, k // 32, 34), dtype=np.uint8)
    scale = (1 / (64 * math.sqrt(k))) * rng.uniform(0.5, 1.5, (n, k // 32))
    raw[:, :, :2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return native.pack("Q8_0", raw.reshape(-1), n, k)


class Layer:
    """The weights of a small llama layer, and its steps as functions of a program and offsets."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        kv = KV_HEADS * HEAD
        shapes = {
            "q": (D, D),
            "k": (kv, D),
            "v": (kv, D),
            "o": (D, D),
            "gate": (FFN, D),
            "up": (FFN, D),
            "down": (D, FFN),
        }
        self.w = {name: q8_0(rng, n, k) for name, (n, k) in shapes.items()}
        self.w["emb"] = q8_0(rng, VOCAB, D)
        self.norm = rng.uniform(0.5, 1.5, D).astype(np.float32)
        self.inv_freq = (10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))).astype(np.float32)
        # value: (width, one row only)
        self.values = {
            "h": D, "n": D, "q": D, "k": kv, "v": kv, "qr": D, "kr": kv, "a": D, "o": D, "h1": D, "n1": D, "gate": FFN,
            "up": FFN, "act": FFN, "down": D, "h2": D, "last": D, "normed": D, "logits": VOCAB,
        }  # fmt: skip
        self.one_row = {"last", "normed", "logits"}

    def caches(self) -> list[np.ndarray]:
        rng = np.random.default_rng(2)
        return [rng.standard_normal((KV_HEADS, CAPACITY, HEAD)).astype(np.float16) for _ in "kv"]

    def steps(self, caches: list[np.ndarray]) -> list[tuple[str, Callable]]:
        w, norm = self.w, self.norm

        def linear(name: str, x: str, y: str, one_row: bool = False) -> tuple[str, Callable]:
            return y, lambda p, o: p.linear(ISA, w[name], o[x], o[y], one_row=one_row)

        def rope(x: str, y: str, heads: int) -> tuple[str, Callable]:
            return y, lambda p, o: p.rope(ISA, o[x], o[y], heads, HEAD, HEAD, False, self.inv_freq, 1.0)

        def add(a: str, b: str, y: str) -> tuple[str, Callable]:
            return y, lambda p, o: p.add(ISA, o[a], o[b], o[y], D)

        return [
            ("h", lambda p, o: p.embedding(ISA, w["emb"], o["h"])),
            ("n", lambda p, o: p.rms_norm(ISA, o["h"], norm, D, 1, 1e-5, o["n"])),
            linear("q", "n", "q"),
            linear("k", "n", "k"),
            linear("v", "n", "v"),
            rope("q", "qr", HEADS),
            rope("k", "kr", KV_HEADS),
            (
                "a",
                lambda p, o: p.attention(
                    ISA, o["qr"], o["kr"], o["v"], o["a"], HEADS, KV_HEADS, HEAD, *caches, HEAD**-0.5
                ),
            ),
            linear("o", "a", "o"),
            add("h", "o", "h1"),
            ("n1", lambda p, o: p.rms_norm(ISA, o["h1"], norm, D, 1, 1e-5, o["n1"])),
            linear("gate", "n1", "gate"),
            linear("up", "n1", "up"),
            ("act", lambda p, o: p.silu_mul(ISA, o["gate"], o["up"], o["act"], FFN)),
            linear("down", "act", "down"),
            add("h1", "down", "h2"),
            ("last", lambda p, o: p.take_last(ISA, o["h2"], o["last"], D)),
            ("normed", lambda p, o: p.rms_norm(ISA, o["last"], norm, D, 1, 1e-5, o["normed"], one_row=True)),
            linear("emb", "normed", "logits", one_row=True),
        ]


LAYER = Layer()


def offsets_apart(max_tokens: int) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, width in LAYER.values.items():
        offsets[name] = end
        end += -(-width * (1 if name in LAYER.one_row else max_tokens) * 4 // 64) * 64
    return offsets, end


class Recorded:
    """The layer as one program."""

    def __init__(self, threads: int, max_tokens: int) -> None:
        self.offsets, n_bytes = offsets_apart(max_tokens)
        self.arena = aligned(n_bytes)
        self.caches = LAYER.caches()
        self.program = native.Program(POOLS[threads], self.arena, max_tokens)
        for _, step in LAYER.steps(self.caches):
            step(self.program, self.offsets)

    def value(self, name: str, tokens: int) -> np.ndarray:
        rows = 1 if name in LAYER.one_row else tokens
        begin, n = self.offsets[name], rows * LAYER.values[name]
        return self.arena[begin : begin + 4 * n].view(np.float32).reshape(rows, -1).copy()


def ids(tokens: int) -> np.ndarray:
    return (np.arange(tokens, dtype=np.int32) * 7 + 3) % VOCAB


@thread_counts
@pytest.mark.parametrize(
    ("max_tokens", "tokens", "position"), [(1, 1, 0), (1, 1, 60), (5, 3, 2), (64, 50, 11), (64, 1, 0)]
)
def test_a_program_equals_its_steps_one_by_one(threads: int, max_tokens: int, tokens: int, position: int) -> None:
    whole = Recorded(threads, max_tokens)
    whole.program.run(ids(tokens), position)
    arena, caches = aligned(len(whole.arena)), LAYER.caches()
    for name, step in LAYER.steps(caches):
        alone = native.Program(POOLS[threads], arena, max_tokens)
        step(alone, whole.offsets)
        alone.run(ids(tokens), position)
        rows = 1 if name in LAYER.one_row else tokens
        begin, n_bytes = whole.offsets[name], rows * LAYER.values[name] * 4
        # Bit by bit: sharing and replicating must not change a value.
        assert (arena[begin : begin + n_bytes] == whole.arena[begin : begin + n_bytes]).all(), name
    for one, other in zip(caches, whole.caches, strict=True):
        assert (one.view(np.uint16) == other.view(np.uint16)).all()


def test_a_decode_layer_has_five_barriers() -> None:
    # After: q k v · attention's parts · o · gate up silu · down. The last row, its norm and lm_head need none.
    assert Recorded(2, 1).program.n_barriers == 5
    assert Recorded(1, 1).program.n_barriers == 0
    assert Recorded(1, 1).program.n_steps == 19


@thread_counts
@pytest.mark.parametrize("max_tokens", [1, 40])
def test_replays_are_deterministic_and_profiling_changes_nothing(threads: int, max_tokens: int) -> None:
    recorded = Recorded(threads, max_tokens)
    tokens = max_tokens
    recorded.program.run(ids(tokens), 5)
    first = recorded.value("logits", 1)
    for _ in range(20):
        recorded.program.run(ids(tokens), 5)
        assert (recorded.value("logits", 1) == first).all()
    seconds = recorded.program.run(ids(tokens), 5, profile=True)
    assert len(seconds) == recorded.program.n_steps
    assert all(s >= 0 for s in seconds)
    assert sum(seconds) > 0
    assert (recorded.value("logits", 1) == first).all()


@pytest.mark.parametrize("tokens", [1, 4, 40])
def test_thread_counts_agree(tokens: int) -> None:
    values = []
    for threads in POOLS:
        recorded = Recorded(threads, tokens)
        recorded.program.run(ids(tokens), 20)
        values.append(recorded.value("a", tokens))
    for value in values[1:]:
        # Attention is the only step whose sums are cut elsewhere; the quantisation before it is the same.
        np.testing.assert_allclose(value, values[0], rtol=0, atol=1e-5 * np.abs(values[0]).max())


def test_prefill_and_decode_make_the_same_caches() -> None:
    tokens = 12
    prefill, decode = Recorded(2, 16), Recorded(2, 1)
    prefill.program.run(ids(tokens), 0)
    for i in range(tokens):
        decode.program.run(ids(tokens)[i : i + 1], i)
    for one, other in zip(prefill.caches, decode.caches, strict=True):
        np.testing.assert_allclose(
            one[:, :tokens].astype(np.float32), other[:, :tokens].astype(np.float32), rtol=2e-3, atol=1e-3
        )


@thread_counts
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_that_reuse_memory(threads: int, seed: int) -> None:
    """Additions and norms over slots that are written and read again and again."""
    rng = np.random.default_rng(seed)
    max_tokens = int(rng.choice([1, 3, 300]))
    widths = (64, 160)
    places = {64: [i * 64 for i in range(6)], 160: [6 * 64 + i * 160 for i in range(6)]}  # floats per token
    arena = aligned(max_tokens * 4 * (6 * 64 + 6 * 160))
    program = native.Program(POOLS[threads], arena, max_tokens)
    script: list[tuple] = []
    for _ in range(80):
        width = int(rng.choice(widths))
        a, b, y = (places[width][i] * max_tokens for i in rng.integers(0, 6, 3))
        if rng.random() < 0.3:
            program.rms_norm(ISA, a * 4, np.ones(width, np.float32), width, 1, 1e-3, y * 4)
            script.append((width, a, None, y))
        else:
            program.add(ISA, a * 4, b * 4, y * 4, width)
            script.append((width, a, b, y))
    start = rng.standard_normal(arena.size // 4).astype(np.float32)
    for tokens in {1, max_tokens}:
        arena.view(np.float32)[:] = start
        program.run(np.zeros(tokens, np.int32), 0)
        want = start.copy()
        for width, a, b, y in script:
            x, out = (want[at : at + tokens * width].reshape(tokens, width) for at in (a, y))
            if b is None:
                out[:] = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-3)
            else:
                out[:] = x + want[b : b + tokens * width].reshape(tokens, width)
        np.testing.assert_allclose(arena.view(np.float32), want, rtol=1e-3, atol=1e-3)


@thread_counts
def test_a_part_of_a_value_can_be_read(threads: int) -> None:
    arena = aligned(4 * 64 * 6)
    values = arena.view(np.float32).reshape(6, 64)
    values[:2] = np.random.default_rng(0).standard_normal((2, 64))
    program = native.Program(POOLS[threads], arena, 1)
    program.add(ISA, 0, 0, 512, 128)  # values 2 and 3: small, so every thread has its own
    program.add(ISA, 768, 768, 1024, 64)  # value 3 alone
    program.add(ISA, 512, 512, 1280, 64)  # value 2: the beginning of what was written
    program.run(ids(1), 0)
    assert (values[2:4] == 2 * values[:2]).all()
    assert (values[4] == 4 * values[1]).all()
    assert (values[5] == 4 * values[0]).all()


@pytest.mark.parametrize("apart", [True, False])
def test_values_that_share_memory_cost_few_barriers(apart: bool) -> None:
    """Norm and residual go where the linears' outputs were: only threads that share memory must wait."""
    recorded = native.Program(POOLS[2], aligned(1 << 14), 1)
    matrix = q8_0(np.random.default_rng(0), D, D)
    h, n, y, z = (i * 512 for i in range(4))
    for _ in range(10):
        recorded.rms_norm(ISA, h, LAYER.norm, D, 1, 1e-5, n if apart else y)
        recorded.linear(ISA, matrix, n if apart else y, z)
        recorded.add(ISA, h, z, h, D)
    # Each linear's output is read by everyone (10), and written again only when everyone has read it (9).
    assert recorded.n_barriers == 19


def test_nothing_but_what_fits_is_recorded() -> None:
    pool, arena = POOLS[2], aligned(4096)
    with pytest.raises(ValueError, match="aligned"):
        native.Program(pool, aligned(4096)[4:], 1)
    with pytest.raises(ValueError, match="max_tokens is 0"):
        native.Program(pool, arena, 0)
    with pytest.raises(ValueError, match="arena has another type; accepted: uint8"):
        native.Program(pool, arena.view(np.float32), 1)
    with pytest.raises(ValueError, match="arena has 1 dimensions or gaps"):
        native.Program(pool, arena[::2], 1)
    program = native.Program(pool, arena, 4)
    for offset in (-4, 2, 4096, 4096 - 4, 2**62):
        with pytest.raises(ValueError, match="offset"):
            program.add(ISA, 0, 256, offset, 16)
    for width in (0, -1, 2**61):
        with pytest.raises(ValueError, match="wide"):
            program.add(ISA, 0, 0, 0, width)
    with pytest.raises(ValueError, match="unknown ISA"):
        program.add("sse2", 0, 256, 512, 16)
    with pytest.raises(ValueError, match="threads is 3"):
        program.add(ISA, 0, 256, 512, 16, threads=3)
    with pytest.raises(ValueError, match="3 weights for d = 16"):
        program.rms_norm(ISA, 0, np.ones(3, np.float32), 16, 1, 1e-5, 256)
    with pytest.raises(ValueError, match="frequencies"):
        program.rope(ISA, 0, 256, 1, 16, 16, True, np.ones(3, np.float32), 1.0)
    matrix = q8_0(np.random.default_rng(0), 16, 32)
    with pytest.raises(ValueError, match="overlap"):
        program.linear(ISA, matrix, 0, 64)
    with pytest.raises(ValueError, match="a bias of 3 for 16"):
        program.linear(ISA, matrix, 0, 1024, bias=np.ones(3, np.float32))
    cache = np.zeros((2, 8, 16), np.float16)
    arguments = (ISA, 0, 256, 512, 1024, 2, 2, 8)
    with pytest.raises(ValueError, match=r"\[2, capacity, 8\]"):
        program.attention(*arguments, cache, cache, 1.0)
    with pytest.raises(ValueError, match="k_cache has another type"):
        program.attention(*arguments, *[np.zeros((2, 8, 8), np.float64)] * 2, 1.0)
    with pytest.raises(ValueError, match="differ in sequences, capacity or type"):
        program.attention(*arguments, np.zeros((2, 8, 8), np.float16), np.zeros((2, 9, 8), np.float16), 1.0)
    with pytest.raises(ValueError, match="k_cache has 3 dimensions or gaps"):
        program.attention(*arguments, *[np.zeros((2, 8, 16), np.float16)[:, :, ::2]] * 2, 1.0)
    good, square = np.zeros((2, 8, 8), np.float16), [q8_0(np.random.default_rng(0), 32, 32)]
    with pytest.raises(ValueError, match="y at offset 4096"):
        program.attention(ISA, 0, 256, 512, 4096, 2, 2, 8, good, good, 1.0)
    with pytest.raises(ValueError, match="y at offset 4096"):
        program.mla_attention(ISA, 0, 512, 4096, 2, 8, 8, np.zeros((1, 8, 16), np.float16), 1.0)
    with pytest.raises(ValueError, match="y at offset 4096"):
        program.moe_experts(ISA, square, square, square, 0, 512, 1024, 4096, 1)
    with pytest.raises(ValueError, match="matrices of 0 rows"):
        program.head_linear(ISA, [native.pack("F32", np.zeros(0, np.uint8), 0, 4)], 0, 1024, tail=4)
    with pytest.raises(TypeError, match="expected a Matrix"):
        program.linear(ISA, "not a matrix", 0, 1024)
    assert program.n_steps == 0


def test_a_value_that_every_thread_has_is_not_cut_like_the_one_before_it() -> None:
    """Two small sums land where linears had shared out the columns: SiLU * up must take each thread's own copies."""
    rng = np.random.default_rng(5)
    matrix, arena = q8_0(rng, 64, 64), aligned(4096)
    program = native.Program(POOLS[2], arena, 1)
    x, a, gate, up, y, z = (256 * i for i in range(6))
    program.linear(ISA, matrix, x, gate)
    program.linear(ISA, matrix, x, up)
    program.add(ISA, a, a, gate, 64)
    program.add(ISA, a, a, up, 64)
    program.silu_mul(ISA, gate, up, y, 64)
    program.linear(ISA, matrix, y, z)
    values = arena.view(np.float32)
    values[:128] = rng.standard_normal(128)
    program.run(ids(1), 0)
    twice = 2 * values[64:128].astype(np.float64)
    np.testing.assert_allclose(values[256:320], twice * twice / (1 + np.exp(-twice)), rtol=1e-5, atol=1e-6)
    # Threads that had taken a part each would have to wait for one another before the last linear.
    assert program.n_barriers == 0


def test_runs_that_do_not_fit_are_refused() -> None:
    recorded = Recorded(2, 4)
    for tokens in (0, 5):
        with pytest.raises(ValueError, match=f"{tokens} tokens"):
            recorded.program.run(ids(tokens), 0)
    with pytest.raises(ValueError, match="position is -1"):
        recorded.program.run(ids(1), -1)
    with pytest.raises(ValueError, match="tokens has another type; accepted: int32"):
        recorded.program.run(np.zeros(1, np.int64), 0)
    assert not recorded.arena.any()


def test_a_program_keeps_what_it_reads_alive() -> None:
    pool = native.Pool(2)
    arena = aligned(4096)
    program = native.Program(pool, arena, 1)
    program.linear(ISA, q8_0(np.random.default_rng(3), 16, 32), 0, 1024)
    view = arena[:2048].view(np.float32)
    view[:32] = 1
    program.run(ids(1), 0)
    before = view[256:272].copy()
    del pool, arena
    junk = [np.full(1 << 16, 3, np.uint8) for _ in range(50)]
    program.run(ids(1), 0)
    assert (view[256:272] == before).all()
    assert before.any()
    assert len(junk) == 50


def test_a_step_may_use_fewer_threads_than_the_pool() -> None:
    pool = native.Pool(3)
    arena = aligned(1 << 16)
    program = native.Program(pool, arena, 1)
    matrix = q8_0(np.random.default_rng(3), 160, 64)
    program.linear(ISA, matrix, 0, 1024, threads=1)
    program.linear(ISA, matrix, 0, 4096, threads=2)
    program.linear(ISA, matrix, 0, 8192)
    arena.view(np.float32)[:64] = np.random.default_rng(4).standard_normal(64)
    program.run(ids(1), 0)
    first, second, third = (arena[begin : begin + 640] for begin in (1024, 4096, 8192))
    assert first.any()
    assert (first == second).all()
    assert (first == third).all()
