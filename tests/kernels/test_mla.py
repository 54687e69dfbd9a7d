"""Latent attention absorbed and decompressed is one function: against each other and against float64, in pieces."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from kbench.core import CPU, KV_TYPES, Attribute, OpCall, Problem, Value
from kbench.kernels import Cache, StepState, WeightData, implementation, implementations, op_spec
from kbench.kernels.cache import empty_rows

pytest.importorskip("kbench.kernels.cpu._native")

HEADS, KV_LORA, ROPE, NOPE, V = 5, 96, 32, 64, 24
# What these tests look at is which values products are made of, not how they are rounded.
pytestmark = pytest.mark.usefixtures("float32_torch")
TYPES = {"F32": np.float32, "F16": np.float16}
ISAS = [item.name for item in implementations() if item.name.startswith("cpu.") and item.runnable().ok]
Floats = npt.NDArray[np.float32]


def weight(name: str, quant: str, numbers: npt.NDArray[np.floating]) -> WeightData:
    stored = np.ascontiguousarray(numbers, TYPES[quant])
    return WeightData(name, quant, numbers.shape[::-1], stored.reshape(-1).view(np.uint8))


class Layer:
    """One layer's ``kv_b`` in either of the two layouts, and a cache."""

    def __init__(self, quant: str, kv: str, capacity: int, split: bool) -> None:
        rng = np.random.default_rng(3)
        to_k = (rng.standard_normal((HEADS, NOPE, KV_LORA)) / 8).astype(TYPES[quant])
        to_v = (rng.standard_normal((HEADS, V, KV_LORA)) / 8).astype(TYPES[quant])
        if split:
            turned = np.ascontiguousarray(to_k.swapaxes(1, 2))
            self.k = weight("attn_k_b.weight", quant, turned)
            self.v = weight("attn_v_b.weight", quant, to_v)
            self.both: tuple[WeightData, ...] = (self.k, self.v)
        else:
            both = np.concatenate([to_k, to_v], axis=1).reshape(-1, KV_LORA)
            self.k = self.v = weight("attn_kv_b.weight", quant, both)
            self.both = (self.k,)
        self.quant, self.kv, self.capacity = quant, kv, capacity
        self.scale = (NOPE + ROPE) ** -0.5
        self.empty()

    def empty(self) -> None:
        width = KV_LORA + ROPE
        self.caches = {0: Cache(empty_rows(self.kv, 1, self.capacity, width), empty_rows(self.kv, 0, 1, 32), self.kv)}

    def step(self, name: str, problem: Problem, weights: Sequence[WeightData], x: Sequence[Floats], position: int,
             width: int, threads: int, attrs: Mapping[str, Attribute]) -> Floats:  # fmt: skip
        names = tuple(f"x{i}" for i in range(len(x)))
        call = OpCall(problem.op, problem, name, CPU, "layer", names, (Value("y", width),),
                      tuple(w.name for w in weights), attrs)  # fmt: skip
        item = implementation(name)
        state = StepState(np.zeros(len(x[0]), np.int32), position, self.caches)
        return item.run(call, item.prepare(problem, weights), x, state, threads)[0]

    def decompressed(self, name: str, q: Floats, latent: Floats, position: int, threads: int = 1) -> Floats:
        tokens = len(q)
        problem = Problem.make(
            "mla_decompressed", quant_k=self.quant, quant_v=self.quant, heads=HEADS, kv_lora=KV_LORA, rope=ROPE,
            nope=NOPE, v=V, kv=self.kv, tokens=tokens, context=position + tokens,
        )  # fmt: skip
        attrs = {"layer": 0, "scale": self.scale}
        return self.step(name, problem, self.both, (q, latent), position, HEADS * V, threads, attrs)

    def absorbed(self, name: str, q: Floats, latent: Floats, position: int, threads: int = 1) -> Floats:
        tokens, width = len(q), KV_LORA + ROPE

        def linear(weights: WeightData, x: Floats, half: str, n: int, k: int, tail: int) -> Floats:
            problem = Problem.make("head_linear", quant=self.quant, heads=HEADS, n=n, k=k, tokens=tokens)
            attrs = {"half": half, "tail": tail}
            # A call by itself takes inputs as wide as its problem and its output say.
            return self.step(name, problem, (weights,), (x,), position, HEADS * (n + tail), threads, attrs)

        problem = Problem.make(
            "mla_attention", heads=HEADS, kv_lora=KV_LORA, rope=ROPE, kv=self.kv, tokens=tokens,
            context=position + tokens,
        )  # fmt: skip
        inner = linear(self.k, q, "k", KV_LORA, NOPE, ROPE)
        attrs = {"layer": 0, "scale": self.scale}
        y = self.step(name, problem, (), (inner, latent), position, HEADS * KV_LORA, threads, attrs)
        assert inner.shape == (tokens, HEADS * width)
        return linear(self.v, y, "v", V, KV_LORA, 0)


def inputs(tokens: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(11)
    q = rng.standard_normal((tokens, HEADS * (NOPE + ROPE)), np.float32)
    return q, rng.standard_normal((tokens, KV_LORA + ROPE), np.float32)


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("name", ["reference", "torch", *ISAS])
def test_absorbed_is_decompressed(name: str, kv: str, split: bool) -> None:
    """With float weights nothing is rounded but sums: within float32 of each other, in one piece and in several."""
    q, latent = inputs(83)
    layer = Layer("F16", kv, 83, split)
    whole = layer.decompressed(name, q, latent, 0)
    layer.empty()
    pieces = []
    for begin, end in ((0, 50), (50, 82), (82, 83)):  # a first chunk, one on a filled cache, a token
        attend = layer.absorbed if begin % 4 else layer.decompressed
        pieces.append(attend(name, q[begin:end], latent[begin:end], begin))
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=2e-4, atol=2e-5)
    layer.empty()
    np.testing.assert_allclose(layer.absorbed(name, q, latent, 0), whole, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("tokens", [1, 3, 70, 300])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_heads_and_positions_shared_among_threads(threads: int, tokens: int) -> None:
    """More threads than heads: positions of one head are attended to by several, and their parts merged."""
    name = ISAS[-1] if "cpu.avx2" not in ISAS else "cpu.avx2"
    q, latent = inputs(tokens + 37)
    layer = Layer("F32", "f16", tokens + 37, False)
    layer.decompressed(name, q[:37], latent[:37], 0)
    alone = layer.decompressed(name, q[37:], latent[37:], 37)
    np.testing.assert_allclose(layer.decompressed(name, q[37:], latent[37:], 37, threads), alone, rtol=1e-4, atol=1e-5)


def test_a_latent_cache_stays_latent() -> None:
    """Both ways leave the same bytes behind."""
    q, latent = inputs(9)
    layer = Layer("F32", "q8_0", 9, False)
    layer.decompressed("cpu.scalar", q, latent, 0)
    stored = layer.caches[0].k.copy()
    layer.empty()
    layer.absorbed("cpu.scalar", q, latent, 0)
    np.testing.assert_array_equal(layer.caches[0].k, stored)


def test_a_head_that_reads_another_ones_matrix_is_caught() -> None:
    layer = Layer("F16", "f16", 20, False)
    q, latent = inputs(20)
    right = layer.decompressed("reference", q, latent, 0)
    rows = np.roll(layer.k.raw.reshape(HEADS, -1), 1, axis=0)
    layer.both = (dataclasses.replace(layer.k, raw=rows.reshape(-1)),)
    layer.empty()
    assert np.abs(layer.decompressed("reference", q, latent, 0) - right).max() > 0.1


def test_the_definition_says_what_it_costs() -> None:
    """Decompressing multiplies every cached latent; absorbing every token, twice."""
    key = "mla_decompressed(quant_k=Q4_K,quant_v=Q4_K,heads=128,kv_lora=512,rope=64,nope=128,v=128,kv=f16,"
    key += "tokens=1,context={})"
    one, two = (op_spec("mla_decompressed").work(Problem.parse(key.format(n))).flops for n in (1, 2))
    assert one == 2 * 128 * (512 * 256 + 320) and two == 2 * one
