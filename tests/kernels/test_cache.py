"""Cache types: stored bytes against torch and the gguf package, and what is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kbench.core import KV_TYPES, Problem, Unsupported, UserError, check_kv, kv_bytes
from kbench.kernels import Cache, empty_rows, implementations
from kbench.kernels.cache import decode, encode, stored_shape

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kv", KV_TYPES)
def test_numbers_come_back_rounded(kv: str) -> None:
    rows = RNG.standard_normal((2, 3, 64)).astype(np.float32)
    stored = encode(kv, rows)
    assert stored.shape == stored_shape(kv, 2, 3, 64) == empty_rows(kv, 2, 3, 64).shape
    assert stored.nbytes == 6 * kv_bytes(kv, 64) and stored.dtype == empty_rows(kv, 1, 1, 32).dtype
    back = decode(kv, stored, np.float64)
    assert back.dtype == np.float64
    steps = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
    if kv == "q8_0":
        # Half a step of the block's largest / 127, and the scale's own rounding.
        largest = np.repeat(np.abs(rows).reshape(2, 3, 2, 32).max(-1), 32, axis=-1)
        assert (np.abs(back - rows) <= largest * (0.5 / 127 + 2.0**-11)).all()
    else:
        assert (np.abs(back - rows) <= steps[kv] * np.abs(rows)).all()
    assert (decode(kv, encode(kv, back)) == back).all(), "rounding again changes nothing"


def test_bf16_is_torch_bfloat16() -> None:
    rows = RNG.standard_normal((4, 32)).astype(np.float32) * 1e3
    rows[0, :4] = [1 + 2**-8, 1 + 3 * 2**-8, -0.0, 3e38]  # ties to even, both ways
    want = torch.from_numpy(rows).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert (encode("bf16", rows) == want).all()


def test_q8_0_blocks_are_gguf_blocks() -> None:
    rows = RNG.standard_normal((5, 96)).astype(np.float32)
    want = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    assert (encode("q8_0", rows) == want).all()


def test_a_cache_knows_its_type() -> None:
    for kv in KV_TYPES:
        rows = empty_rows(kv, 2, 3, 32)
        assert Cache(rows, rows.copy()).kv == kv == Cache(rows, rows.copy(), kv).kv
        assert Cache(rows, rows.copy()).n_bytes == 2 * 6 * kv_bytes(kv, 32)
    half = np.zeros((1, 1, 32), np.float16)
    for k, v, kv in [(half, half, "bf16"), (half, half.astype(np.float32), ""), (half.astype(np.float64),) * 2 + ("",)]:
        with pytest.raises(ValueError, match="cache"):
            Cache(k, v, kv)


def test_blocks_that_do_not_fit_are_refused_everywhere() -> None:
    with pytest.raises(UserError, match="did you mean q8_0"):
        check_kv("q8", where="kv")
    with pytest.raises(Unsupported, match="a q8_0 cache of vectors of 40 · accepted: multiples of 32"):
        kv_bytes("q8_0", 40)
    assert kv_bytes("q8_0", 512, 64) == 576 // 32 * 34
    gqa = Problem.make("attention", heads=2, kv_heads=1, d=40, kv="q8_0", tokens=1, context=4)
    mla = Problem.make("mla_attention", heads=2, kv_lora=64, rope=8, kv="q8_0", tokens=1, context=4)
    for item in implementations():
        for problem in (gqa, mla):
            assert not item.runnable().ok or not item.supports(problem).ok
            assert item.supports(problem.replace(kv="bf16")).ok or not item.runnable().ok
