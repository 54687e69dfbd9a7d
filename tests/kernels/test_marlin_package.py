"""What a package's Marlin kernels are given: stand-ins with the documented signatures multiply in float64."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from kbench.kernels.marlin import package  # noqa: E402
from kbench.kernels.marlin.package import MarlinPackage, multiply_by, pack_for, takes_shape  # noqa: E402
from kbench.kernels.triton.int4_rows import int4_matrix, stored_codes, stored_scale, weights_of  # noqa: E402


def gptq_marlin_repack(b_q_weight: Any, perm: Any, size_k: int, size_n: int, num_bits: int) -> Any:
    """The words stay GPTQ's: what the product then reads."""
    assert b_q_weight.shape == (size_k // 8, size_n) and b_q_weight.dtype == torch.int32
    assert perm.numel() == 0 and num_bits == 4
    return b_q_weight


def product(a: Any, b_q_weight: Any, b_scales: Any, workspace: Any, n: int, k: int) -> Any:
    words = b_q_weight.to(torch.int64) & 0xFFFFFFFF
    codes = torch.stack([words >> (4 * i) & 15 for i in range(8)], 1).reshape(k, n).double() - 8
    # vllm's get_scale_perms: number i + 8 j of a run of 64 comes at 8 i + j.
    order = torch.tensor([i + 8 * j for i in range(8) for j in range(8)])
    scale = torch.empty(b_scales.shape, dtype=torch.float64)
    scale.reshape(-1, 64)[:, order] = b_scales.double().reshape(-1, 64)
    assert workspace.numel() >= n // 64 * 16 and not workspace.any() and b_scales.dtype == a.dtype
    return (a.double() @ (codes * scale.repeat_interleave(k // len(scale), 0))).to(a.dtype)


def gptq_marlin_gemm(
    a: Any, c: Any, b_q_weight: Any, b_bias: Any, b_scales: Any, global_scale: Any, b_zeros: Any, g_idx: Any, perm: Any,
    workspace: Any, b_q_type: Any, size_m: int, size_n: int, size_k: int, is_k_full: bool = True,
    use_atomic_add: bool = False, use_fp32_reduce: bool = False, is_zp_float: bool = False,
) -> Any:  # fmt: skip
    assert c is b_bias is global_scale is b_zeros is None and b_q_type == "uint4b8"
    assert is_k_full and use_fp32_reduce and not use_atomic_add and len(a) == size_m
    return product(a, b_q_weight, b_scales, workspace, size_n, size_k)


def marlin_gemm(
    a: Any, c: Any, b_q_weight: Any, b_bias: Any, b_scales: Any, a_scales: Any, global_scale: Any, b_zeros: Any,
    g_idx: Any, perm: Any, workspace: Any, b_q_type: Any, size_m: int, size_n: int, size_k: int,
) -> Any:  # fmt: skip
    assert a_scales is None
    return product(a, b_q_weight, b_scales, workspace, size_n, size_k)


@pytest.mark.parametrize("function", [gptq_marlin_gemm, marlin_gemm])
@pytest.mark.parametrize("group", [64, 128])
def test_a_package_is_given_the_same_matrix(function: Any, group: int) -> None:
    rng = np.random.default_rng(group)
    raw = rng.standard_normal((128, 256)).astype(np.float32).view(np.uint8).reshape(-1)
    matrix = int4_matrix(raw, "F32", 256, "cpu", group)
    known = MarlinPackage("stand-in 1", function, gptq_marlin_repack, "uint4b8")
    packed = pack_for(known, stored_codes(matrix), stored_scale(matrix), matrix.unit, 132, matrix.rounding)
    x = torch.from_numpy(rng.standard_normal((3, 256))).half()
    right = x.double() @ weights_of(matrix).T
    got = multiply_by(known, x, packed).double() / packed.unit
    torch.testing.assert_close(got, right, rtol=2**-10, atol=1e-2)


def find(monkeypatch: pytest.MonkeyPatch, operations: Any) -> MarlinPackage | None:
    modules = {
        "vllm._custom_ops": operations,
        "vllm.scalar_type": SimpleNamespace(scalar_types=SimpleNamespace(uint4b8=1)),
    }
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True if name == "vllm" else None)
    monkeypatch.setattr(importlib, "import_module", lambda name: modules[name])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.0")
    return package.installed_package()


def test_a_package_is_taken_where_all_it_requires_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(a: Any, something_new: Any) -> None: ...

    repack = gptq_marlin_repack
    found = find(monkeypatch, SimpleNamespace(gptq_marlin_gemm=gptq_marlin_gemm, gptq_marlin_repack=repack))
    assert found is not None and found.name == "vllm 0.12.0"
    newer = find(monkeypatch, SimpleNamespace(marlin_gemm=marlin_gemm, gptq_marlin_repack=repack))
    assert newer is not None and newer.product is marlin_gemm
    assert find(monkeypatch, SimpleNamespace(marlin_gemm=later, gptq_marlin_repack=repack)) is None
    assert find(monkeypatch, SimpleNamespace(gptq_marlin_repack=repack)) is None


def test_shapes() -> None:
    assert takes_shape(64, 256, 128) and takes_shape(5120, 1408, 128)
    assert not takes_shape(65, 256, 128) and not takes_shape(64, 192, 64) and not takes_shape(64, 128, 128)
