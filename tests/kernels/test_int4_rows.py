"""Rows of 4-bit integers: where each code lies, and how little rounding takes away."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from kbench.kernels import random_weight

torch = pytest.importorskip("torch")
from kbench.kernels.triton.int4_rows import (  # noqa: E402
    CHUNK,
    Int4Matrix,
    bits_per_weight,
    int4_matrix,
    pack,
    round_rows,
    stored_scale,
    unpack,
    weights_of,
)


def matrix_of(values: np.ndarray, group: int = 128) -> Int4Matrix:
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint8).reshape(-1)
    return int4_matrix(raw, "F32", values.shape[1], "cpu", group, "w")


def test_a_word_holds_four_columns_64_apart() -> None:
    codes = torch.from_numpy(np.random.default_rng(1).integers(0, 16, (128, 512), dtype=np.uint8))
    words = pack(codes).numpy().view(np.uint16)
    assert words.shape == (2, 2, 64, 64)
    for row, column in ((0, 0), (63, 255), (64, 256), (100, 64 + 256), (127, 511), (5, 130)):
        word = words[row // 64, column // 256, row % 64, column % 64]
        assert word >> (4 * (column % 256 // 64)) & 15 == codes[row, column]
    torch.testing.assert_close(unpack(pack(codes)), codes, rtol=0, atol=0)


def naive(values: np.ndarray, group: int, side: int) -> np.ndarray:
    """Squared errors by group of one scale: the largest weight on the code ``side``."""
    grouped = values.reshape(len(values), -1, group).astype(np.float64)
    largest = np.take_along_axis(grouped, np.abs(grouped).argmax(-1)[..., None], -1)
    step = largest / side
    return np.asarray(np.square(grouped - step * np.clip(np.rint(grouped / step), -8, 7)).sum(-1))


@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize("shape", ["normal", "heavy", "uniform"])
def test_errors_are_no_larger_than_those_of_the_largest_weight_alone(group: int, shape: str) -> None:
    rng = np.random.default_rng(2)
    values = {
        "normal": rng.standard_normal((64, 1024)),
        "heavy": rng.standard_t(3, (64, 1024)),
        "uniform": rng.uniform(-1, 1, (64, 1024)),
    }[shape].astype(np.float32)
    codes, scale = round_rows(torch.from_numpy(values), group)
    got = (codes.double() - 8) * scale.double().repeat_interleave(group, dim=1)
    errors = np.square(got.numpy() - values).reshape(64, -1, group).sum(-1)
    # Float32 adds up a group's squares to 1e-5 of them at worst.
    for side in (-8, -7, 7):
        assert (errors <= naive(values, group, side) * (1 + 1e-5)).all()
    # Least squares win clearly where there are outliers, and somewhat everywhere.
    assert errors.sum() < {"normal": 0.99, "heavy": 0.95, "uniform": 1.0}[shape] * naive(values, group, -8).sum()


@pytest.mark.parametrize("quant", ["Q4_K", "Q6_K", "Q8_0", "IQ4_XS", "MXFP4", "F16"])
def test_the_report_says_how_far_off_it_is(quant: str) -> None:
    weight = random_weight("blk.0.w", quant, (768, 70), np.random.default_rng(3))
    truth = gguf.quants.dequantize(weight.raw.reshape(70, -1), gguf.GGMLQuantizationType[quant]).astype(np.float64)
    matrix = int4_matrix(weight.raw, quant, 768, "cpu", 64, "blk.0.w")
    error = weights_of(matrix).numpy() - truth
    said = matrix.rounding
    assert (said.tensor, said.quant, said.group) == ("blk.0.w", quant, 64)
    # Scales are rounded to float16 after the report: 2^-11 of a weight that is off by a twentieth.
    assert said.relative_rms == pytest.approx(np.sqrt(np.square(error).sum() / np.square(truth).sum()), rel=1e-2)
    assert said.largest == pytest.approx(np.abs(error).max() / np.abs(truth).max(), rel=2e-2)
    assert 0.01 < said.relative_rms < 0.2


@pytest.mark.parametrize(("n", "k"), [(1, 32), (70, 576), (64, 256), (129, 1408)])
def test_rows_and_columns_are_filled_up_with_nothing(n: int, k: int) -> None:
    matrix = matrix_of(np.random.default_rng(4).standard_normal((n, k)))
    codes, scale = unpack(matrix.words), matrix.scale.transpose(1, 2).reshape(len(matrix.words) * 64, -1)
    whole = (codes.double() - 8) * scale.double().repeat_interleave(128, dim=1)
    assert whole[n:].abs().sum() == 0 and whole[:, k:].abs().sum() == 0
    assert weights_of(matrix).shape == (n, k) and stored_scale(matrix).shape == (n, -(-k // 128))


def test_numbers_at_the_ends() -> None:
    """Rows of zeros, of equal numbers, near both ends of float32, and what is no number."""
    values = np.zeros((6, CHUNK), dtype=np.float32)
    values[1] = 3.0
    values[2, ::7] = -1e-3
    values[3, 5] = np.nan
    values[4, 9] = np.inf
    matrix = matrix_of(values)
    got = weights_of(matrix).numpy()
    assert np.isfinite(got).all() and not got[0].any() and not got[3].any() and not got[4].any()
    np.testing.assert_allclose(got[1], 3.0, rtol=2**-11)
    # A scale below float16's normal range, 3 * 2^-16 here, is off by 2^-25.
    np.testing.assert_allclose(got[2], values[2], rtol=2e-2)
    for power in (1e-30, 1e30):
        scaled = weights_of(matrix_of(values[1:2] * np.float32(power))).numpy()
        np.testing.assert_allclose(scaled / power, 3.0, rtol=2**-10)


def test_bits() -> None:
    matrix = matrix_of(np.ones((128, 1024)))
    assert matrix.n_bytes * 8 == matrix.n * matrix.k * bits_per_weight(128) and bits_per_weight(64) == 4.25
