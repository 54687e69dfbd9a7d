"""The native matrix kernels against the ``gguf`` package's own dequantisation, in float64."""

from __future__ import annotations

from functools import cache

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from kbench.kernels.cpu import _native

BLOCK = {
    "F32": 1, "F16": 1, "BF16": 1, "Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q5_1": 32, "Q8_0": 32, "IQ4_NL": 32,
    "MXFP4": 32, "Q2_K": 256, "Q3_K": 256, "Q4_K": 256, "Q5_K": 256, "Q6_K": 256, "IQ4_XS": 256,
}  # fmt: skip
# Types without a quantizer in the package, and where their blocks keep float16 scales: any other bytes are valid.
SCALES = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
FLOATS = [name for name, block in BLOCK.items() if block == 1]
ISAS = [name for name, missing in _native.isas() if not missing]
EPS = 2.0**-24  # half a unit in the last place of float32: the error of one rounding
N_ROWS = [1, 15, 16, 17, 40]
TOKENS = [*range(1, 13), 17, 33]


def type_of(quant: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[quant]


def random_bytes(quant: str, n: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    """GGUF bytes of an n x k matrix. Each row has its own magnitude, so that mixed-up rows show."""
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal((n, k)) * np.exp(rng.uniform(-2, 2, (n, 1)))).astype(np.float32)
    if quant not in SCALES:
        return gguf.quants.quantize(weights, type_of(quant)).view(np.uint8).reshape(-1)
    block, size = gguf.GGML_QUANT_SIZES[type_of(quant)]
    blocks = rng.integers(0, 256, (n * k // block, size), dtype=np.uint8)
    for offset in SCALES[quant]:
        scales = rng.uniform(-0.02, 0.02, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(-1)


def dequantize(quant: str, raw: NDArray[np.uint8], n: int, k: int) -> NDArray[np.float32]:
    return np.asarray(gguf.quants.dequantize(raw, type_of(quant)), dtype=np.float32).reshape(n, k)


@cache
def matrix(quant: str, n: int, k: int) -> tuple[_native.Matrix, NDArray[np.float64]]:
    raw = random_bytes(quant, n, k)
    return _native.pack(quant, raw, n, k), dequantize(quant, raw, n, k).astype(np.float64)


def activations(tokens: int, k: int, seed: int = 1) -> NDArray[np.float32]:
    """Normal values with an outlier here and there and one block of zeros, as in a real hidden state."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, k)) * np.where(rng.random((tokens, k)) < 0.01, 20, 1)
    x[tokens // 2, : min(32, k // 2)] = 0
    return x.astype(np.float32)


def quantize(x: NDArray[np.float32], planes: int, most: int = 127) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x rounded to +-``most`` in blocks of 32, dequantised, and the scale of each value; with a second plane, what
    rounding took from the first is rounded in the same way and added, and the scale is the second's."""
    if planes == 2:
        first, _ = quantize(x, 1)
        second, scale = quantize((x - first).astype(np.float32), 1)
        return first + second, scale
    blocks = x.reshape(len(x), -1, 32)
    absmax = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.where(absmax > 0, np.float32(most) / np.where(absmax > 0, absmax, 1), 0).astype(np.float32)
    scale = (absmax / np.float32(most)).astype(np.float64)
    q = np.rint(blocks * inverse).astype(np.float64)
    return (q * scale).reshape(x.shape), np.broadcast_to(scale, blocks.shape).reshape(x.shape)


def rounding_bound(w: NDArray[np.float64], x: NDArray[np.float64], n_sums: int) -> NDArray[np.float64]:
    """Bound on the float32 rounding errors of a kernel, [tokens, n].

    A kernel adds, per block of 32, a scaled integer dot product and at most two offset terms to a float32 sum: with
    the roundings of scale, product and sum of each, under 4 (1 + n_sums) roundings on the path of any term, plus one
    per addition after it. An unsigned quant times its scale and its offset are each larger than the weight that they
    make together; both are within |w| + the range of the block (Q4_0: 15 d and 8 d, where |w| <= 8 d) twice over.
    """
    n, k = w.shape
    blocks = w.reshape(n, -1, 32)
    parts = 2 * (np.abs(blocks).max(axis=-1) + blocks.max(axis=-1) - blocks.min(axis=-1))
    sizes = np.abs(x).reshape(len(x), -1, 32).sum(axis=-1) @ parts.T
    return EPS * (4 + k / 32) * (1 + n_sums) * sizes


def check(isa: str, quant: str, n: int, k: int, tokens: int, bias: NDArray[np.float32] | None = None) -> None:
    for planes in (1, 2):
        for panel_tokens in (tokens + 1, 1):  # both kernels, whatever the switch point
            check_kernel(isa, quant, n, k, tokens, bias, planes, panel_tokens)


def check_kernel(
    isa: str,
    quant: str,
    n: int,
    k: int,
    tokens: int,
    bias: NDArray[np.float32] | None,
    planes: int,
    panel_tokens: int,
) -> None:
    packed, w = matrix(quant, n, k)
    x = activations(tokens, k)
    _native.matmul("scalar", packed, -x, bias)  # so that a value left out is not found right in memory left over
    y = _native.matmul(isa, packed, x, bias, None, planes, panel_tokens).astype(np.float64)
    assert y.shape == (tokens, n)
    shift = 0.0 if bias is None else bias.astype(np.float64)
    exact = x.astype(np.float64) @ w.T + shift
    of_bias = EPS * (np.abs(exact) + np.abs(shift))
    if quant in FLOATS:
        # Products and sums in float32, in any order: (k + 2) roundings on the path of a term at most.
        # BF16 instructions round activations as well: to 8 bits with one plane, tile registers to 16 with two.
        bits = {("avx512_bf16", 1): 8, ("amx", 1): 8, ("amx", 2): 16}.get((isa, planes)) if quant == "BF16" else None
        rounded = 2.0**-bits if bits is not None else 0.0
        bound = (EPS * (k + 2) + rounded) * (np.abs(x).astype(np.float64) @ np.abs(w).T) + of_bias
        assert (np.abs(y - exact) <= bound).all()
        return
    most = 127
    if _native.reads_words(isa, quant, tokens, planes, panel_tokens):
        planes, most = 1, 8191
    xq, scale = quantize(x, planes, most)
    rounding = planes * rounding_bound(w, x, n_sums=2) + 2 * of_bias
    assert (np.abs(y - (xq @ w.T + shift)) <= rounding).all()
    # Rounding an activation moves it by half a scale (and the 2 eps * most that float32 leaves at a tie).
    moved = (0.5 + 4 * most * EPS) * (scale @ np.abs(w).T)
    assert (np.abs(y - exact) <= moved + rounding).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant", BLOCK)
@pytest.mark.parametrize("tokens", TOKENS)
def test_every_token_count(isa: str, quant: str, tokens: int) -> None:
    check(isa, quant, n=40, k=2 * max(BLOCK[quant], 32), tokens=tokens)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant", BLOCK)
@pytest.mark.parametrize("n", N_ROWS)
@pytest.mark.parametrize("blocks", [1, 3])
def test_every_row_count_and_odd_block_counts(isa: str, quant: str, n: int, blocks: int) -> None:
    for tokens in (1, 3, 5):
        check(isa, quant, n, blocks * BLOCK[quant], tokens)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant", ["F16", "Q4_1", "Q6_K"])
def test_more_activations_than_a_cache_holds(isa: str, quant: str) -> None:
    """Kernels take tokens in chunks: here in several."""
    check(isa, quant, n=17, k=8192, tokens=171)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_longer_than_a_chunk_of_activations(isa: str) -> None:
    """Panel kernels take such rows in parts."""
    check(isa, "Q5_1", n=33, k=2**18, tokens=2, bias=np.linspace(-3, 3, 33).astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant", FLOATS)
def test_float_formats_take_any_number_of_columns(isa: str, quant: str) -> None:
    for k in (2, 5, 31, 33, 50):
        for tokens in (1, 2, 7):
            check(isa, quant, n=17, k=k, tokens=tokens)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant", BLOCK)
def test_bias(isa: str, quant: str) -> None:
    bias = np.linspace(-3, 3, 17).astype(np.float32)
    for tokens in (1, 7):
        check(isa, quant, n=17, k=max(BLOCK[quant], 32), tokens=tokens, bias=bias)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant", [quant for quant in BLOCK if quant not in FLOATS])
def test_a_long_row_and_extreme_quants(isa: str, quant: str) -> None:
    """All bits of the quants set and activations at +-127: the largest integer sums a block can have."""
    n, k = 16, 1024
    raw = random_bytes(quant, n, k).reshape(n * k // BLOCK[quant], -1).copy()
    start = {"Q2_K": 0, "Q3_K": 0, "Q6_K": 0, "MXFP4": 1, "Q4_1": 4, "Q5_1": 4, "Q4_K": 4, "Q5_K": 4}.get(quant, 2)
    stop = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}.get(quant, raw.shape[1])
    for fill in (0xFF, 0x80, 0x00):
        raw[:, start:stop] = fill
        packed = _native.pack(quant, raw.reshape(-1), n, k)
        w = dequantize(quant, raw.reshape(-1), n, k).astype(np.float64)
        for sign in (1, -1):
            x = np.full((3, k), sign * 127, np.float32)
            # The range of a block is 0 here, so its parts are not bounded by it: 64 quants steps of scale at most.
            d = np.abs(w).max() + 63 * 128 * 0.1
            for planes, panel_tokens in ((1, 4), (1, 1), (2, 1)):  # lines; bytes or words; words
                y = _native.matmul(isa, packed, x, planes=planes, panel_tokens=panel_tokens)
                assert (np.abs(y - x.astype(np.float64) @ w.T) <= EPS * (4 + k / 32) * 3 * 2 * d * 127 * k).all()


@pytest.mark.parametrize("quant", BLOCK)
def test_rows_unpack_to_exactly_what_gguf_says(quant: str) -> None:
    for n, k in [(1, 256), (17, 768), (40, 256)]:
        raw = random_bytes(quant, n, k, seed=n)
        ids = np.random.default_rng(2).integers(0, n, 50, dtype=np.int32)
        rows = _native.pack(quant, raw, n, k).unpack_rows(ids)
        expected = dequantize(quant, raw, n, k)[ids]
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows.view(np.uint32), expected.view(np.uint32))  # the sign of a zero, too


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0"])
def test_every_16_bit_pattern_unpacks_exactly(quant: str) -> None:
    """Subnormals, infinities and NaN included."""
    bits = np.arange(2**16, dtype=np.uint16)
    if quant == "Q8_0":
        raw = np.zeros((2**16, 34), np.uint8)
        raw[:, :2] = bits[:, None].view(np.uint8)
        raw[:, 2:] = np.arange(32)
        n, k = 2**11, 2**10
    else:
        raw, n, k = bits.view(np.uint8).reshape(1, -1), 2**8, 2**8
    packed = _native.pack(quant, raw.reshape(-1), n, k)
    with np.errstate(invalid="ignore"):
        expected = dequantize(quant, raw.reshape(-1), n, k)
    np.testing.assert_array_equal(packed.unpack_rows(np.arange(n, dtype=np.int32)), expected)


def test_every_exponent_and_value_of_mxfp4_unpacks_exactly() -> None:
    raw = np.empty((256, 17), np.uint8)
    raw[:, 0] = np.arange(256)
    raw[:, 1:] = np.arange(16) | np.arange(16)[::-1] << 4
    with np.errstate(over="ignore"):
        expected = dequantize("MXFP4", raw.reshape(-1), 256, 32)
    rows = _native.pack("MXFP4", raw.reshape(-1), 256, 32).unpack_rows(np.arange(256, dtype=np.int32))
    np.testing.assert_array_equal(rows.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("quant", BLOCK)
def test_instruction_sets_agree(quant: str) -> None:
    packed, w = matrix(quant, 40, 512)
    x = activations(7, 512)
    bound = 2 * rounding_bound(w, np.abs(x).astype(np.float64), n_sums=2)
    if quant in FLOATS:
        bound = 2 * EPS * 514 * (np.abs(x).astype(np.float64) @ np.abs(w).T)
    truth = _native.matmul("scalar", packed, x)
    for isa in ISAS:
        assert (np.abs(_native.matmul(isa, packed, x) - truth) <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant", BLOCK)
def test_zero_weights_no_rows_and_no_tokens(isa: str, quant: str) -> None:
    k = max(BLOCK[quant], 32)
    n_raw = k // BLOCK[quant] * gguf.GGML_QUANT_SIZES[type_of(quant)][1]
    zeros = _native.pack(quant, np.zeros(20 * n_raw, np.uint8), 20, k)
    # Zero bytes are the smallest scale of MXFP4, 2^-128, not 0: its zero point may leave a rounding of the last place.
    smallest = 2.0**-128 if quant == "MXFP4" else 0.0
    assert np.abs(_native.matmul(isa, zeros, activations(3, k))).max() <= smallest
    assert not zeros.unpack_rows(np.arange(20, dtype=np.int32)).any()
    assert _native.matmul(isa, zeros, np.empty((0, k), np.float32)).shape == (0, 20)
    empty = _native.pack(quant, np.empty(0, np.uint8), 0, k)
    assert empty.n_bytes == 0
    assert _native.matmul(isa, empty, activations(3, k)).shape == (3, 0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant", ["Q4_1", "Q8_0", "Q6_K"])
def test_activations_outside_the_range(isa: str, quant: str) -> None:
    """Infinity and NaN spoil their own token only; huge and vanishing values do not overflow the rounding."""
    packed, w = matrix(quant, 17, 256)
    x = activations(6, 256)
    good = _native.matmul(isa, packed, x)
    x[1, 3], x[3, 200], x[5, 77] = np.nan, np.inf, -np.inf
    y = _native.matmul(isa, packed, x)
    assert np.isnan(y[[1, 3, 5]]).all()
    np.testing.assert_array_equal(y[[0, 2, 4]], good[[0, 2, 4]])
    assert not _native.matmul(isa, packed, np.full((2, 256), 1e-40, np.float32)).any()
    huge = np.full((1, 256), 1e34, np.float32)
    np.testing.assert_allclose(_native.matmul(isa, packed, huge)[0], w.sum(axis=1) * 1e34, rtol=1e-3, atol=1e32)
    tiny = np.full((1, 256), 2e-34, np.float32)
    np.testing.assert_allclose(_native.matmul(isa, packed, tiny)[0], w.sum(axis=1) * 2e-34, rtol=1e-3, atol=2e-36)


@pytest.mark.parametrize("quant", BLOCK)
def test_threads_change_nothing(quant: str) -> None:
    pool = _native.Pool(2)
    raw = random_bytes(quant, 40, 256)
    one, two = _native.pack(quant, raw, 40, 256), _native.pack(quant, raw, 40, 256, pool)
    x = activations(5, 256)
    for isa in ISAS:
        np.testing.assert_array_equal(_native.matmul(isa, one, x), _native.matmul(isa, two, x, None, pool))


@pytest.mark.parametrize("quant", BLOCK)
def test_packed_size_is_the_gguf_size(quant: str) -> None:
    """Decode is bytes: a packed matrix is read once per token. Six-bit scales are widened to eight."""
    most = {"Q3_K": 1.04, "Q4_K": 1.03, "Q5_K": 1.023, "IQ4_XS": 1.015}.get(quant, 1)
    # 32768 columns: a plane of scales is whole lines, there is nothing to round up.
    raw = random_bytes(quant, 16, 32768)
    assert len(raw) <= _native.pack(quant, raw, 16, 32768).n_bytes <= most * len(raw)


def test_an_instruction_set_that_cannot_run_says_why() -> None:
    names = ["scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"]
    names += ["neon_dotprod", "neon_i8mm"]
    assert [name for name, _ in _native.isas()] == names
    packed, _ = matrix("F32", 1, 2)
    for isa, missing in _native.isas():
        if missing:
            with pytest.raises(ValueError, match=missing.split(",")[0]):
                _native.matmul(isa, packed, activations(1, 2))
    with pytest.raises(ValueError, match=f"unknown ISA 'avx3', accepted: {', '.join(names)}"):
        _native.matmul("avx3", packed, activations(1, 2))


@pytest.mark.parametrize(
    ("quant", "n_raw", "n", "k", "complaint"),
    [
        ("Q9_0", 18, 1, 32, "accepted: F32, F16"),
        ("Q4_0", 18, 1, 33, "multiple of 32"),
        ("Q4_K", 144, 1, 32, "multiple of 256"),
        ("Q4_0", 18, 1, 0, "positive multiple"),
        ("Q4_0", 18, 1, -32, "positive multiple"),
        ("Q4_0", 18, -1, 32, "0 or more"),
        ("Q4_0", 17, 1, 32, "17 raw bytes"),
        ("Q4_0", 19, 1, 32, "19 raw bytes"),
        ("Q4_0", 18, 2, 32, "18 raw bytes, but 2 rows of 32 Q4_0 weights take 2 x 1 x 18"),
        ("Q4_0", 18, 0, 32, "18 raw bytes"),
        ("F32", 8, 2**62, 2**61, "8 raw bytes"),
        ("F32", 8, 2**32, 2**32, "8 raw bytes"),
    ],
)
def test_sizes_that_do_not_fit_together(quant: str, n_raw: int, n: int, k: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        _native.pack(quant, np.zeros(n_raw, np.uint8), n, k)


def test_arguments_that_do_not_fit_the_matrix() -> None:
    packed, _ = matrix("Q4_0", 17, 32)
    with pytest.raises(ValueError, match="x has 64 columns"):
        _native.matmul("scalar", packed, activations(1, 64))
    with pytest.raises(ValueError, match="bias has 16 values"):
        _native.matmul("scalar", packed, activations(1, 32), np.zeros(16, np.float32))
    for row in (-1, 17):
        with pytest.raises(IndexError, match=f"row {row}"):
            packed.unpack_rows(np.array([row], np.int32))
