"""Every native operation against torch in float64, alone in a program, at odd sizes and thread counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from kbench.core import KV_TYPES
from kbench.kernels.cache import decode, encode

native = pytest.importorskip("kbench.kernels.cpu._native")

ISAS = [name for name, missing in native.isas() if not missing]
POOLS = {threads: native.Pool(threads) for threads in (1, 2, 3, 7)}
isas = pytest.mark.parametrize("isa", ISAS)
thread_counts = pytest.mark.parametrize("threads", list(POOLS))

# Between values in the arena: 64 bytes that must not change.
CANARY = 0xA5
# float32 results of well-conditioned sums of a few hundred terms against float64: 2^-24 * sqrt(512) * 6 deviations.
F32 = {"rtol": 1e-5, "atol": 1e-5}
# One vectorised exp (1.8e-7), a division and two products, 0.6e-7 each.
ELEMENTWISE = {"rtol": 5e-7, "atol": 1e-30}


class Bench:
    """An arena of named values with canaries between them, and a program over it."""

    def __init__(self, threads: int, max_tokens: int, **values: tuple[int, int]) -> None:
        self.offsets: dict[str, int] = {}
        self._shapes = values
        end = 64
        for name, (rows, width) in values.items():
            self.offsets[name] = end
            end += math.ceil(rows * width * 4 / 64) * 64 + 64
        raw = np.full(end + 64, CANARY, np.uint8)
        begin = -raw.ctypes.data % 64
        self.arena = raw[begin : begin + end]
        self.program = native.Program(POOLS[threads], self.arena, max_tokens)

    def __getitem__(self, name: str) -> np.ndarray:
        rows, width = self._shapes[name]
        begin = self.offsets[name]
        return self.arena[begin : begin + rows * width * 4].view(np.float32).reshape(rows, width)

    def run(self, n_tokens: int, position: int = 0, tokens: np.ndarray | None = None) -> None:
        self.program.run(np.zeros(n_tokens, np.int32) if tokens is None else tokens, position)
        covered = np.zeros(len(self.arena), bool)
        for name, (rows, width) in self._shapes.items():
            covered[self.offsets[name] : self.offsets[name] + rows * width * 4] = True
        assert (self.arena[~covered] == CANARY).all(), "wrote outside its values"


def f64(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).double()


def close(got: np.ndarray, want: torch.Tensor, **bounds: float) -> None:
    np.testing.assert_allclose(got, want.numpy().reshape(got.shape), **(bounds or F32))


@isas
@thread_counts
@pytest.mark.parametrize(("tokens", "d", "rows"), [(1, 576, 1), (5, 60, 1), (3, 64, 9), (12, 7, 2), (2, 8200, 1)])
def test_rms_norm(isa: str, threads: int, tokens: int, d: int, rows: int) -> None:
    rng = np.random.default_rng(d)
    b = Bench(threads, tokens, x=(tokens, rows * d), y=(tokens, rows * d))
    b["x"][:] = rng.standard_normal((tokens, rows * d)) * 10
    weight = rng.uniform(0.5, 1.5, d).astype(np.float32)
    b.program.rms_norm(isa, b.offsets["x"], weight, d, rows, 1e-5, b.offsets["y"])
    b.run(tokens)
    want = functional.rms_norm(f64(b["x"]).reshape(tokens, rows, d), (d,), f64(weight), 1e-5)
    close(b["y"], want, rtol=1e-6, atol=1e-12)


@isas
def test_rms_norm_passes_on_what_is_behind_the_vector(isa: str) -> None:
    b = Bench(2, 3, x=(3, 20), y=(3, 20))
    b["x"][:] = np.random.default_rng(0).standard_normal((3, 20))
    b.program.rms_norm(isa, b.offsets["x"], np.ones(16, np.float32), 16, 1, 0.0, b.offsets["y"], row_width=20)
    b.run(3)
    close(b["y"][:, :16], functional.rms_norm(f64(b["x"][:, :16]), (16,)), rtol=1e-6, atol=1e-12)
    assert (b["y"][:, 16:] == b["x"][:, 16:]).all()


@isas
@thread_counts
@pytest.mark.parametrize(("tokens", "n"), [(1, 1536), (3, 70), (12, 1000)])
def test_silu_mul_and_add(isa: str, threads: int, tokens: int, n: int) -> None:
    rng = np.random.default_rng(n)
    b = Bench(threads, tokens, g=(tokens, n), u=(tokens, n), y=(tokens, n), z=(tokens, n))
    b["g"][:] = rng.standard_normal((tokens, n)) * 8
    b["u"][:] = rng.standard_normal((tokens, n))
    b["g"][0, :6] = [0.0, -0.0, 88.0, -87.0, 1e-30, -30.0]
    b.program.silu_mul(isa, b.offsets["g"], b.offsets["u"], b.offsets["y"], n)
    b.program.add(isa, b.offsets["g"], b.offsets["u"], b.offsets["z"], n)
    b.run(tokens)
    close(b["y"], functional.silu(f64(b["g"])) * f64(b["u"]), **ELEMENTWISE)
    assert (b["z"] == b["g"] + b["u"]).all()


@isas
@thread_counts
@pytest.mark.parametrize(("tokens", "d"), [(1, 256), (3, 70), (12, 1000)])
def test_gated_add(isa: str, threads: int, tokens: int, d: int) -> None:
    rng = np.random.default_rng(d)
    names = ("a", "b", "h", "y")
    b = Bench(threads, tokens, **dict.fromkeys(names, (tokens, d)))
    for name in names[:3]:
        b[name][:] = rng.standard_normal((tokens, d))
    w = rng.standard_normal(d).astype(np.float32) / d**0.5
    b.program.gated_add(isa, *(b.offsets[n] for n in names[:3]), w, b.offsets["y"], d)
    b.run(tokens)
    gate = torch.sigmoid(f64(b["h"]) @ f64(w))
    # A sum of d products of size 1/sqrt(d) is off by some roundings of 1, the sigmoid by a quarter of that.
    close(b["y"], f64(b["a"]) + gate[:, None] * f64(b["b"]), rtol=1e-6, atol=2e-6)
    with pytest.raises(ValueError, match="overlaps"):
        b.program.gated_add(isa, *(b.offsets[n] for n in names[:3]), w, b.offsets["h"], d)


@isas
def test_silu_of_extreme_values(isa: str) -> None:
    b = Bench(1, 1, g=(1, 8), u=(1, 8), y=(1, 8))
    b["g"][0] = [3e38, -3e38, np.inf, 100, -100, np.nan, -1e4, 1e4]
    b["u"][0] = 1
    b.program.silu_mul(isa, b.offsets["g"], b.offsets["u"], b.offsets["y"], 8)
    b.run(1)
    np.testing.assert_allclose(b["y"][0], [3e38, 0, np.inf, 100, 0, np.nan, 0, 1e4], rtol=1e-6, atol=1e-30)


def _rope64(x: np.ndarray, inv_freq: np.ndarray, position: int, d: int, neox: bool, factor: float) -> torch.Tensor:
    """Turns the last d of each vector of x[tokens, heads, head_dim] as complex numbers."""
    values = f64(x).clone()
    angles = (position + torch.arange(len(x)).double())[:, None] * f64(inv_freq)
    turn = torch.polar(torch.full_like(angles, factor), angles)[:, None]
    part = values[..., -d:]
    if neox:
        turned = torch.complex(part[..., : d // 2], part[..., d // 2 :]) * turn
        values[..., -d:] = torch.cat([turned.real, turned.imag], -1)
    else:
        turned = torch.view_as_complex(part.reshape(*part.shape[:-1], d // 2, 2).contiguous()) * turn
        values[..., -d:] = torch.view_as_real(turned).reshape(part.shape)
    return values


@isas
@thread_counts
@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim", "d", "position"), [(1, 9, 64, 64, 0), (5, 1, 24, 10, 100_000), (40, 3, 64, 64, 131)]
)
@pytest.mark.parametrize("in_place", [False, True])
def test_rope(
    isa: str, threads: int, neox: bool, tokens: int, heads: int, head_dim: int, d: int, position: int, in_place: bool
) -> None:
    rng = np.random.default_rng(d)
    width = heads * head_dim
    b = Bench(threads, tokens, x=(tokens, width), y=(tokens, width))
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    b["x"][:] = x
    inv_freq = (10000.0 ** (-np.arange(d // 2) / (d // 2))).astype(np.float32)
    out = "x" if in_place else "y"
    b.program.rope(isa, b.offsets["x"], b.offsets[out], heads, head_dim, d, neox, inv_freq, 1.25)
    b.run(tokens, position)
    want = _rope64(x.reshape(tokens, heads, head_dim), inv_freq, position, d, neox, 1.25)
    # Angles in double, at position 100,000 too: what is left is float32 cos, sin and two products.
    close(b[out], want, rtol=0, atol=1e-6)


def _sdpa(q: np.ndarray, k: np.ndarray, v: np.ndarray, position: int, scale: float) -> torch.Tensor:
    """q[tokens, heads, dk], cached k[kv_heads, context, dk], v[kv_heads, context, dv] -> [tokens, heads, dv]."""
    tokens, context = len(q), k.shape[1]
    mask = torch.arange(context)[None] <= position + torch.arange(tokens)[:, None]
    y = functional.scaled_dot_product_attention(
        f64(q.transpose(1, 0, 2)), f64(k), f64(v), attn_mask=mask, scale=scale, enable_gqa=True
    )
    return y.transpose(0, 1)


ATTENTION = [  # tokens, context, heads, kv_heads, d
    (1, 1, 9, 3, 64),
    (1, 33, 9, 3, 64),
    (1, 700, 3, 3, 20),
    (1, 300, 16, 1, 8),
    (1, 97, 1, 1, 72),
    (5, 5, 6, 2, 64),
    (7, 203, 4, 4, 12),
    (12, 64, 8, 1, 40),
    (70, 150, 9, 3, 64),
    (33, 33, 2, 1, 7),
]


def _cache(kv: str, rng: np.random.Generator, heads: int, capacity: int, d: int, filled: int) -> np.ndarray:
    """Random numbers, and NaN behind them: whatever lies there must not be read before it is written."""
    cache = encode(kv, rng.standard_normal((heads, capacity, d)).astype(np.float32))
    cache[:, filled:] = encode(kv, np.full((1, 1, d), np.nan, np.float32))
    return cache


@isas
@thread_counts
@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(("tokens", "context", "heads", "kv_heads", "d"), ATTENTION)
def test_attention(
    isa: str, threads: int, kv: str, tokens: int, context: int, heads: int, kv_heads: int, d: int
) -> None:
    if kv == "q8_0":
        d += -d % 32
    rng = np.random.default_rng(context * d)
    position, capacity = context - tokens, context + 3
    b = Bench(
        threads,
        tokens,
        q=(tokens, heads * d),
        k=(tokens, kv_heads * d),
        v=(tokens, kv_heads * d),
        y=(tokens, heads * d),
    )
    for name in "qkv":
        b[name][:] = rng.standard_normal(b[name].shape) * 2
    caches = [_cache(kv, rng, kv_heads, capacity, d, position) for _ in "kv"]
    offsets = [b.offsets[name] for name in "qkvy"]
    b.program.attention(isa, *offsets, heads, kv_heads, d, *caches, d**-0.5)
    b.run(tokens, position)
    for name, cache in zip("kv", caches, strict=True):
        assert (cache[:, position:context] == encode(kv, b[name].reshape(tokens, kv_heads, d).transpose(1, 0, 2))).all()
        assert np.isnan(decode(kv, cache[:, context:])).all()
    k, v = (decode(kv, cache[:, :context]) for cache in caches)
    # Scores up to 30 are off by 2^-24 sqrt(d) of themselves, weights by e to that: 1e-5; outputs are of size 1.
    close(b["y"], _sdpa(b["q"].reshape(tokens, heads, d), k, v, position, d**-0.5), rtol=0, atol=3e-5)


@isas
@thread_counts
@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(
    ("tokens", "context", "heads", "kv_lora", "rope"), [(1, 40, 16, 64, 16), (1, 300, 130, 24, 8), (6, 50, 10, 40, 6)]
)
def test_mla_attention(
    isa: str, threads: int, kv: str, tokens: int, context: int, heads: int, kv_lora: int, rope: int
) -> None:
    if kv == "q8_0":
        kv_lora, rope = kv_lora + -kv_lora % 32, 32
    rng = np.random.default_rng(heads)
    width, position = kv_lora + rope, context - tokens
    b = Bench(threads, tokens, q=(tokens, heads * width), latent=(tokens, width), y=(tokens, heads * kv_lora))
    b["q"][:] = rng.standard_normal(b["q"].shape)
    b["latent"][:] = rng.standard_normal(b["latent"].shape)
    cache = _cache(kv, rng, 1, context, width, position)
    offsets = [b.offsets[name] for name in ("q", "latent", "y")]
    b.program.mla_attention(isa, *offsets, heads, kv_lora, rope, cache, width**-0.5)
    b.run(tokens, position)
    assert (cache[0, position:] == encode(kv, b["latent"])).all()
    k = decode(kv, cache)
    want = _sdpa(b["q"].reshape(tokens, heads, width), k, k[..., :kv_lora], position, width**-0.5)
    close(b["y"], want, rtol=0, atol=3e-5)


@isas
def test_scores_of_any_finite_size_leave_attention_finite(isa: str) -> None:
    b = Bench(2, 1, q=(1, 8), k=(1, 8), v=(1, 8), y=(1, 8))
    b["q"][:], b["k"][:], b["v"][:] = 1e18, 1e18, 7
    caches = [np.zeros((1, 64, 8), np.float32) for _ in "kv"]
    caches[0][0, :40], caches[1][0, :40] = -1e18, 5
    b.program.attention(isa, *(b.offsets[n] for n in "qkvy"), 1, 1, 8, *caches, 1.0)
    b.run(1, 40)
    assert (b["y"] == 7).all()


@isas
def test_rows_are_stored_to_the_last_bit(isa: str) -> None:
    """Ties, subnormals, zeros and the largest numbers; a NaN in a block does not hide behind 31 good numbers."""
    d = 96
    x = np.random.default_rng(5).standard_normal((40, d)).astype(np.float32)
    x[0] = np.linspace(-127, 127, d)  # q8_0: a scale near 1, and ties
    x[1, :33] = np.arange(33) - 15.5
    x[1, 31] = 127
    x[2] = np.float32(1) + np.arange(d, dtype=np.float32) * np.float32(2.0**-12)  # ties of f16 and bf16
    x[3], x[4], x[5] = x[3] * 1e-6, 0, x[5] * 2e4
    x[6, 40] = np.nan
    for kv in KV_TYPES:
        b = Bench(1, 40, q=(40, d), k=(40, d), v=(40, d), y=(40, d))
        b["k"][:], b["v"][:] = x, -x
        k, v = (np.zeros_like(encode(kv, x[None])) for _ in "kv")
        b.program.attention(isa, *(b.offsets[n] for n in "qkvy"), 1, 1, d, k, v, 1.0)
        b.run(40)
        for got, rows in ((k, x), (v, -x)):
            good = np.arange(40) != 6
            assert (got[0, good] == encode(kv, rows[good])).all(), kv
            assert np.isnan(decode(kv, got[0, 6])[40])


def test_vectors_that_q8_0_blocks_do_not_fit() -> None:
    b = Bench(1, 1, q=(1, 40), k=(1, 40), v=(1, 40), y=(1, 40))
    caches = [np.zeros((1, 4, 34), np.uint8) for _ in "kv"]
    with pytest.raises(ValueError, match="q8_0 cache of vectors of 40; accepted: multiples of 32"):
        b.program.attention(ISAS[0], *(b.offsets[n] for n in "qkvy"), 1, 1, 40, *caches, 1.0)
    with pytest.raises(ValueError, match="accepted: float32, float16, uint16"):
        b.program.attention(ISAS[0], *(b.offsets[n] for n in "qkvy"), 1, 1, 40, *(np.zeros((1, 4, 40)),) * 2, 1.0)


def test_a_full_cache_is_an_error_and_nothing_is_touched() -> None:
    b = Bench(2, 4, q=(4, 16), k=(4, 16), v=(4, 16), y=(4, 16))
    for name in "qkvy":
        b[name][:] = 3
    caches = [np.zeros((2, 10, 8), np.float16) for _ in "kv"]
    b.program.attention(ISAS[0], *(b.offsets[n] for n in "qkvy"), 2, 2, 8, *caches, 1.0)
    with pytest.raises(ValueError, match="cache is full: 4 tokens at position 7, capacity 10"):
        b.run(4, 7)
    with pytest.raises(ValueError, match="position is 4611686018427387904"):
        b.run(1, 2**62)
    assert (b["y"] == 3).all()
    assert not any(cache.any() for cache in caches)
    b.run(3, 7)


def _matrix(rng: np.random.Generator, n: int, k: int) -> tuple[object, np.ndarray]:
    w = (rng.standard_normal((n, k)) / math.sqrt(k)).astype(np.float32)
    return native.pack("F32", w.reshape(-1).view(np.uint8), n, k), w


@isas
@thread_counts
@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 70, 96), (5, 16, 32), (40, 33, 64), (50, 600, 40)])
def test_linear_with_bias(isa: str, threads: int, tokens: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    matrix, w = _matrix(rng, n, k)
    bias = rng.standard_normal(n).astype(np.float32)
    b = Bench(threads, tokens, x=(tokens, k), y=(tokens, n))
    b["x"][:] = rng.standard_normal((tokens, k))
    b.program.linear(isa, matrix, b.offsets["x"], b.offsets["y"], bias=bias)
    b.run(tokens)
    close(b["y"], functional.linear(f64(b["x"]), f64(w), f64(bias)))


@isas
@thread_counts
@pytest.mark.parametrize("tokens", [1, 6, 40])
def test_quantised_linears_share_activations(isa: str, threads: int, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    raw = [rng.integers(0, 256, (n, 64 // 32 * 34), dtype=np.uint8) for n in (48, 20)]
    for r in raw:  # finite half scales of about 2^-4
        r.reshape(-1, 34)[:, :2] = np.array([0.06], np.float16).view(np.uint8)
    matrices = [native.pack("Q8_0", r.reshape(-1), len(r), 64) for r in raw]
    b = Bench(threads, tokens, x=(tokens, 64), y0=(tokens, 48), y1=(tokens, 20))
    b["x"][:] = rng.standard_normal((tokens, 64))
    for i, matrix in enumerate(matrices):
        b.program.linear(isa, matrix, b.offsets["x"], b.offsets[f"y{i}"])
    b.run(tokens)
    for i, matrix in enumerate(matrices):
        w = matrix.unpack_rows(np.arange(matrix.n, dtype=np.int32))
        # int8 activations: an element is off by up to half a step of max/127; 6 deviations of the sum of 64.
        step = np.abs(b["x"]).max() / 127
        bound = 6 * step / math.sqrt(12) * np.sqrt((w**2).sum(1).max())
        close(b[f"y{i}"], functional.linear(f64(b["x"]), f64(w)), rtol=0, atol=float(bound))


@isas
@thread_counts
@pytest.mark.parametrize(
    ("tokens", "heads", "n", "k", "tail"), [(1, 5, 33, 32, 0), (4, 2, 16, 24, 8), (3, 1, 7, 64, 4)]
)
def test_head_linear(isa: str, threads: int, tokens: int, heads: int, n: int, k: int, tail: int) -> None:
    rng = np.random.default_rng(heads)
    pairs = [_matrix(rng, n, k) for _ in range(heads)]
    b = Bench(threads, tokens, x=(tokens, heads * (k + tail)), y=(tokens, heads * (n + tail)))
    b["x"][:] = rng.standard_normal(b["x"].shape)
    b.program.head_linear(isa, [m for m, _ in pairs], b.offsets["x"], b.offsets["y"], tail=tail)
    b.run(tokens)
    x = f64(b["x"]).reshape(tokens, heads, k + tail)
    y = b["y"].reshape(tokens, heads, n + tail)
    close(y[..., :n], torch.einsum("thk,hnk->thn", x[..., :k], torch.stack([f64(w) for _, w in pairs])))
    assert (y[..., n:] == x[..., k:].float().numpy()).all()


@isas
@thread_counts
@pytest.mark.parametrize("tokens", [1, 12])
def test_embedding_and_take_last(isa: str, threads: int, tokens: int) -> None:
    rng = np.random.default_rng(0)
    matrix, w = _matrix(rng, 50, 24)
    b = Bench(threads, tokens, x=(tokens, 24), y=(1, 24))
    b.program.embedding(isa, matrix, b.offsets["x"])
    b.program.take_last(isa, b.offsets["x"], b.offsets["y"], 24)
    ids = rng.integers(0, 50, tokens, dtype=np.int32)
    b.run(tokens, tokens=ids)
    assert (b["x"] == w[ids]).all()
    assert (b["y"][0] == w[ids[-1]]).all()
    for bad in (-1, 50, 2**31 - 1):
        with pytest.raises(ValueError, match=f"token id {bad}"):
            b.run(1, tokens=np.array([bad], np.int32))


ROUTERS = [  # experts, top_k, scoring, n_group, topk_group, renormalise, scaling, bias
    (8, 2, "softmax", 1, 1, True, 1.0, False),
    (12, 4, "sigmoid", 1, 1, True, 2.827, True),
    (16, 3, "softmax", 4, 2, False, 16.0, False),
    (32, 4, "sigmoid", 8, 4, True, 2.5, True),
    (5, 5, "softmax", 1, 1, False, 1.0, True),
]


def _route64(logits: torch.Tensor, router: tuple, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    experts, top_k, scoring, n_group, topk_group, renormalise, scaling, _ = router
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias
    if n_group > 1:
        grouped = choice.reshape(len(choice), n_group, -1)
        group = grouped.amax(-1) if bias is None else grouped.topk(2, -1).values.sum(-1)
        keep = torch.zeros_like(group).scatter(1, group.topk(topk_group, -1).indices, 1.0).bool()
        choice = grouped.masked_fill(~keep[..., None], -math.inf).reshape(len(choice), experts)
    ids = choice.topk(top_k, -1).indices
    weights = scores.gather(-1, ids)
    return ids, (weights / weights.sum(-1, keepdim=True) if renormalise else weights) * scaling


@isas
@thread_counts
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("tokens", [1, 9])
def test_moe_router(isa: str, threads: int, router: tuple, tokens: int) -> None:
    experts, top_k, scoring, n_group, topk_group, renormalise, scaling, has_bias = router
    rng = np.random.default_rng(experts)
    matrix, w = _matrix(rng, experts, 40)
    bias = rng.standard_normal(experts).astype(np.float32) * 0.3 if has_bias else None
    b = Bench(threads, tokens, x=(tokens, 40), ids=(tokens, top_k), weights=(tokens, top_k))
    b["x"][:] = rng.standard_normal((tokens, 40)) * 3
    b.program.moe_router(
        isa, matrix, *(b.offsets[n] for n in ("x", "ids", "weights")), top_k, scoring, n_group, topk_group, renormalise,
        scaling, bias=bias,
    )  # fmt: skip
    b.run(tokens)
    ids, weights = _route64(functional.linear(f64(b["x"]), f64(w)), router, None if bias is None else f64(bias))
    assert (b["ids"].view(np.int32) == ids.numpy()).all()
    close(b["weights"], weights)


def test_equal_scores_go_to_the_lower_expert() -> None:
    matrix = native.pack("F32", np.zeros(8 * 32, np.float32).view(np.uint8), 8, 32)
    b = Bench(2, 1, x=(1, 32), ids=(1, 3), weights=(1, 3))
    b["x"][:] = 1
    b.program.moe_router(ISAS[-1], matrix, *(b.offsets[n] for n in ("x", "ids", "weights")), 3, "softmax")
    b.run(1)
    assert b["ids"].view(np.int32).tolist() == [[0, 1, 2]]


@isas
@thread_counts
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "n", "k"), [(1, 4, 2, 64, 32), (5, 9, 3, 40, 96), (70, 3, 2, 33, 200)]
)
def test_moe_experts(isa: str, threads: int, tokens: int, experts: int, top_k: int, n: int, k: int) -> None:
    rng = np.random.default_rng(tokens)
    gate, up, down = ([_matrix(rng, *shape) for _ in range(experts)] for shape in ((n, k), (n, k), (k, n)))
    b = Bench(threads, tokens, x=(tokens, k), ids=(tokens, top_k), weights=(tokens, top_k), y=(tokens, k))
    b["x"][:] = rng.standard_normal((tokens, k))
    ids = np.argsort(rng.random((tokens, experts)), -1)[:, :top_k].astype(np.int32)
    ids[ids == experts - 1] = ids[0, 0]  # an expert without tokens, and perhaps one twice for a token
    b["ids"].view(np.int32)[:] = ids
    b["weights"][:] = rng.random((tokens, top_k))
    lists = [[m for m, _ in pairs] for pairs in (gate, up, down)]
    b.program.moe_experts(isa, *lists, *(b.offsets[name] for name in ("x", "ids", "weights", "y")), top_k)
    b.run(tokens)
    x, want = f64(b["x"]), torch.zeros(tokens, k, dtype=torch.float64)
    for t in range(tokens):
        for i, e in enumerate(ids[t]):
            wg, wu, wd = (f64(pairs[e][1]) for pairs in (gate, up, down))
            want[t] += float(b["weights"][t, i]) * (wd @ (functional.silu(wg @ x[t]) * (wu @ x[t])))
    close(b["y"], want)


@isas
@thread_counts
def test_one_token_may_choose_an_expert_twice(isa: str, threads: int) -> None:
    """Routers do that with logits of NaN. The second reading must not run on into what is behind the token's row."""
    rng = np.random.default_rng(0)
    gate, up, down = ([_matrix(rng, *shape)[0] for _ in range(2)] for shape in ((40, 32), (40, 32), (32, 40)))
    b = Bench(threads, 1, x=(1, 32), ids=(1, 2), weights=(1, 2), y=(1, 32))
    b["x"][:] = rng.standard_normal((1, 32))
    b.program.moe_experts(isa, gate, up, down, *(b.offsets[n] for n in ("x", "ids", "weights", "y")), 2)
    results = []
    for ids, weights in (([1, 1], [0.75, 0.5]), ([1, 0], [1.25, 0.0])):
        b["ids"].view(np.int32)[:], b["weights"][:] = ids, weights
        b.run(1)
        results.append(b["y"].copy())
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_an_expert_that_is_not_there_is_an_error() -> None:
    rng = np.random.default_rng(0)
    gate, up, down = ([_matrix(rng, *shape)[0] for _ in range(2)] for shape in ((32, 32), (32, 32), (32, 32)))
    b = Bench(2, 1, x=(1, 32), ids=(1, 2), weights=(1, 2), y=(1, 32))
    b["x"][:] = 1
    b.program.moe_experts(ISAS[-1], gate, up, down, *(b.offsets[n] for n in ("x", "ids", "weights", "y")), 2)
    b["ids"].view(np.int32)[:] = [[0, -5]]
    with pytest.raises(ValueError, match="expert id"):
        b.run(1)
