"""Matrices that stay where they are stored: the packed ones' results, and every other type that GGUF has."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import weakref

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from kbench.core import Problem, quant
from kbench.kernels import dequantize, example, implementation, op_spec
from kbench.kernels.cpu import _native
from kbench.kernels.cpu.matrices import DEQUANTISED_FORMATS, FORMATS, PACKED_FORMATS, make_item
from kbench.kernels.implementation import WeightData
from kbench.kernels.random_weight import random_blocks

ISAS = [name for name, missing in _native.isas() if not missing]
EPS = 2.0**-24


def block_of(name: str) -> int:
    return max(quant(name).block_elements, 32)


def raw_bytes(name: str, n: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return random_blocks(name, n * k // quant(name).block_elements, 0.1, rng)


def kept(name: str, raw: NDArray[np.uint8], n: int, k: int) -> _native.Matrix:
    """Through Python's preparation, which hands over grids."""
    item = make_item(
        Problem.parse(f"linear(quant={name},n={n},k={k},tokens=1)"), WeightData("w", name, (k, n), raw), raw=True
    )
    assert isinstance(item, _native.Matrix) and item.layout == "raw"
    return item


def same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_every_type_of_the_gguf_package_can_be_read() -> None:
    known = {kind.name for kind in importlib.import_module("gguf.quants")._type_traits}
    assert known | {"F32", "F16", "F64"} == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_exactly_what_gguf_says(name: str) -> None:
    n, k = 19, 3 * block_of(name)
    raw = raw_bytes(name, n, k)
    ids = np.array([0, 18, 7, 16, 7], np.int32)
    matrix = kept(name, raw, n, k)
    assert matrix.n_bytes == raw.nbytes and matrix.format == name
    same_bits(matrix.unpack_rows(ids), dequantize(raw, name, k)[ids])


@pytest.mark.parametrize("name", DEQUANTISED_FORMATS)
def test_any_bytes_are_read_as_gguf_reads_them(name: str) -> None:
    """All bit patterns: grid indices, signs, scales of every kind, infinities and NaN."""
    k = 4 * quant(name).block_elements
    row_bytes = quant(name).row_bytes(k)
    raw = np.random.default_rng(5).integers(0, 256, 400 * row_bytes, dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(raw, name, k)
    found = kept(name, raw, 400, k).unpack_rows(np.arange(400, dtype=np.int32))
    number = ~np.isnan(expected)
    assert (np.isnan(found) == ~number).all() and number.mean() > 0.9
    same_bits(found[number], expected[number])


def test_every_byte_of_nvfp4_scales_and_of_ternary_digits() -> None:
    raw = np.tile(np.arange(36, dtype=np.uint8) * 7, (256, 1))
    raw[:, :4] = np.arange(256)[:, None]
    same_bits(
        kept("NVFP4", raw.reshape(-1), 256, 64).unpack_rows(np.arange(256, dtype=np.int32)),
        dequantize(raw, "NVFP4", 64),
    )
    raw = np.empty((256, 54), np.uint8)
    raw[:, :52] = np.arange(256)[:, None]
    raw[:, 52:] = np.array([0x00, 0x3C], np.uint8)
    same_bits(
        kept("TQ1_0", raw.reshape(-1), 256, 256).unpack_rows(np.arange(256, dtype=np.int32)),
        dequantize(raw, "TQ1_0", 256),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", PACKED_FORMATS)
def test_a_raw_matrix_gives_the_packed_ones_bits(isa: str, name: str) -> None:
    n, k = 37, 2 * block_of(name)
    raw = raw_bytes(name, n, k)
    packed, stored = _native.pack(name, raw, n, k), _native.keep_raw(name, raw, n, k)
    bias = np.linspace(-1, 1, n).astype(np.float32)
    pool = _native.Pool(2)
    for tokens in (1, 5, 40):
        x = np.random.default_rng(tokens).standard_normal((tokens, k)).astype(np.float32)
        for planes in (1, 2):
            same_bits(
                _native.matmul(isa, stored, x, bias, None, planes), _native.matmul(isa, packed, x, bias, None, planes)
            )
        same_bits(_native.matmul(isa, stored, x, None, pool), _native.matmul(isa, packed, x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", DEQUANTISED_FORMATS)
def test_other_types_multiply_as_float32(isa: str, name: str) -> None:
    for n, blocks in [(1, 1), (15, 3), (16, 1), (40, 2)]:
        k = blocks * block_of(name)
        raw = raw_bytes(name, n, k, seed=n)
        w = dequantize(raw, name, k).astype(np.float64)
        bias = np.linspace(-1, 1, n).astype(np.float32)
        for tokens in (1, 2, 3, 7, 12, 33):
            x = np.random.default_rng(tokens).standard_normal((tokens, k)).astype(np.float32)
            _native.matmul(isa, kept(name, raw, n, k), -x, bias)  # values left over from this would be wrong
            y = _native.matmul(isa, kept(name, raw, n, k), x, bias)
            exact = x.astype(np.float64) @ w.T + bias
            bound = EPS * (k + 2) * (np.abs(x).astype(np.float64) @ np.abs(w).T) + EPS * (np.abs(exact) + np.abs(bias))
            assert (np.abs(y - exact) <= bound).all()


@pytest.mark.parametrize("name", FORMATS)
def test_no_rows_and_no_tokens(name: str) -> None:
    k = block_of(name)
    empty = kept(name, np.empty(0, np.uint8), 0, k)
    assert empty.n_bytes == 0 and _native.matmul("scalar", empty, np.ones((3, k), np.float32)).shape == (3, 0)
    some = kept(name, raw_bytes(name, 5, k), 5, k)
    assert _native.matmul("scalar", some, np.empty((0, k), np.float32)).shape == (0, 5)


# No instruction set but these two adds to what is tested here.
@pytest.mark.parametrize("isa", [ISAS[0], ISAS[-1]])
@pytest.mark.parametrize(
    "key",
    [
        "linear(quant=Q4_K,n=40,k=512,tokens={t})",
        "linear(quant=IQ2_XS,n=40,k=512,tokens={t})",
        "embedding(quant=Q6_K,vocab=50,d=256,tokens={t})",
        "embedding(quant=IQ3_S,vocab=50,d=256,tokens={t})",
        "head_linear(quant=Q8_0,heads=3,n=24,k=64,tokens={t})",
        "moe_router(quant=F64,experts=9,top_k=2,k=64,tokens={t})",
        "moe_experts(experts=5,top_k=2,n=256,k=256,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens={t})",
        "moe_experts(experts=5,top_k=2,n=256,k=256,quant_gate=IQ2_XXS,quant_up=IQ1_M,quant_down=IQ3_XXS,tokens={t})",
        "moe_experts(experts=5,top_k=2,n=256,k=256,quant_gate=TQ2_0,quant_up=Q5_K,quant_down=IQ4_XS,tokens={t})",
        "moe_experts(experts=5,top_k=2,n=96,k=64,quant_gate=MXFP4,quant_up=MXFP4,quant_down=MXFP4,tokens={t})",
    ],
)
def test_operations_on_stored_rows(isa: str, key: str) -> None:
    item = implementation(f"cpu.{isa}")
    for tokens in (1, 6, 40):
        bias = key.startswith(("linear", "moe_experts"))
        case = example(Problem.parse(key.format(t=tokens)), np.random.default_rng(1), bias=bias)
        prepared = item.prepare(case.call.problem, case.weights, {"layout": "raw"})
        outputs = item.run(case.call, prepared, case.inputs, case.state, 2)
        verdict = op_spec(case.call.op).check(item, case, outputs)
        assert verdict.ok, verdict.reason
        if "IQ" not in key and "F64" not in key and "TQ" not in key:
            packed = item.run(case.call, item.prepare(case.call.problem, case.weights), case.inputs, case.state, 2)
            np.testing.assert_array_equal(outputs[0], packed[0])


def test_the_rows_live_as_long_as_the_matrix() -> None:
    class Watched(np.ndarray):  # type: ignore[type-arg]
        """An array that can be watched: plain ones take no weak references."""

    raw = raw_bytes("Q8_0", 16, 32).view(Watched)
    watch = weakref.ref(raw)
    matrix = _native.keep_raw("Q8_0", raw, 16, 32)
    expected = dequantize(np.array(raw), "Q8_0", 32)
    del raw
    gc.collect()
    assert watch() is not None
    same_bits(matrix.unpack_rows(np.arange(16, dtype=np.int32)), expected)
    del matrix
    gc.collect()
    assert watch() is None


def test_rows_are_not_copied() -> None:
    raw = np.zeros(34 * 16, np.uint8)
    matrix = _native.keep_raw("Q8_0", raw, 16, 32)
    raw[:2] = np.array([1], np.float16).view(np.uint8)
    raw[2] = 5
    assert matrix.unpack_rows(np.array([0], np.int32))[0, 0] == 5
    with pytest.raises(TypeError):  # a conversion would be a copy that nobody keeps
        _native.keep_raw("Q8_0", raw.astype(np.int16), 16, 32)


@pytest.mark.parametrize("name", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_a_missing_grid_is_an_error(name: str) -> None:
    """In a process of its own: here grids may have been set."""
    code = f"""
import numpy as np
from kbench.kernels.cpu import _native
raw = np.zeros({quant(name).block_bytes}, np.uint8)
try:
    _native.keep_raw("{name}", raw, 1, 256)
except ValueError as error:
    assert "{name} needs its grid" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_grid_is_set_once() -> None:
    traits = gguf.quants.IQ3_S
    kept("IQ3_S", raw_bytes("IQ3_S", 1, 256), 1, 256)
    assert traits.grid is not None
    grid = traits.grid.astype(np.int8).reshape(-1)
    _native.set_grid("IQ3_S", grid)  # the same again
    with pytest.raises(ValueError, match="another grid"):
        _native.set_grid("IQ3_S", grid + np.int8(1))
    with pytest.raises(ValueError, match="512 x 4 values, not 2047"):
        _native.set_grid("IQ3_S", grid[:-1])
    with pytest.raises(ValueError, match="TQ1_0 has no grid"):
        _native.set_grid("TQ1_0", grid)


@pytest.mark.parametrize(
    ("name", "n_raw", "n", "k", "complaint"),
    [
        ("IQ2_XS", 74, 1, 32, "multiple of 256"),
        ("NVFP4", 36, 1, 32, "multiple of 64"),
        ("Q8_0", 33, 1, 32, "33 raw bytes"),
        ("Q8_0", 34, 2, 32, "34 raw bytes, but 2 rows"),
        ("F64", 8, 2**62, 2**61, "8 raw bytes"),
        ("F64", 8, -1, 1, "0 or more"),
        ("Q1_0", 18, 1, 128, "no kernel reads format 'Q1_0'"),
    ],
)
def test_sizes_that_do_not_fit_together(name: str, n_raw: int, n: int, k: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        _native.keep_raw(name, np.zeros(n_raw, np.uint8), n, k)


def test_a_type_without_a_packed_layout_is_not_packed() -> None:
    with pytest.raises(ValueError, match="TQ2_0 has no packed layout"):
        _native.pack("TQ2_0", np.zeros(66, np.uint8), 1, 256)
