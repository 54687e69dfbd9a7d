"""Marlin's own kernels, where a package that has them is installed: vllm or sgl-kernel.

Both offer the same two operations, ``gptq_marlin_repack`` and ``gptq_marlin_gemm`` (``marlin_gemm`` in newer vllm): the
first brings GPTQ's words into the kernel's order, so that no layout of it is assumed here, the second multiplies. What
is known of them is their documented signatures and vllm's ``marlin_utils``: codes of 4 bits less 8 (``uint4b8``),
groups of 64 or 128, ``n`` a multiple of 64 and ``k`` of 128; GPTQ's words are int32 ``[k / 8, n]``, bits ``4 i`` of
word ``j`` the code of column ``8 j + i``; scales ``[k / group, n]``, in every run of 64 the 8 x 8 transposed. Arguments
are passed by the names that the installed version has; one that requires an argument not known here is left alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from ..triton.int4_rows import RoundingError

if TYPE_CHECKING:
    import torch

# Module of the operations, module of the type ``uint4b8``, distribution.
_PACKAGES = (
    ("vllm._custom_ops", "vllm.scalar_type", "vllm"),
    ("sgl_kernel", "sgl_kernel.scalar_type", "sgl-kernel"),
)
_PRODUCTS = ("marlin_gemm", "gptq_marlin_gemm")
_REPACK = "gptq_marlin_repack"
# Of a workspace, for every 64 rows of weights, in versions that do not count multiprocessors instead.
_LOCKS = 16


@dataclass(frozen=True, slots=True)
class MarlinPackage:
    """The operations of an installed package, ``name`` with its version."""

    name: str
    product: Callable[..., Any]
    repack: Callable[..., Any]
    code_type: Any


@dataclass(frozen=True, slots=True)
class PackedByPackage:
    """A matrix in the package's order; ``scale`` belongs to weights times ``unit``; ``rounding`` as elsewhere."""

    n: int
    k: int
    words: torch.Tensor
    scale: torch.Tensor
    workspace: torch.Tensor
    empty: torch.Tensor
    unit: float
    rounding: RoundingError

    @property
    def n_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.words, self.scale, self.workspace))


def installed_package() -> MarlinPackage | None:
    """The first package whose operations take what is known here; importing it is what it takes to know."""
    for module, types, distribution in _PACKAGES:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            continue
        try:
            found, code_type = importlib.import_module(module), importlib.import_module(types).scalar_types.uint4b8
            version = metadata.version(distribution)
        except Exception:  # a package built for another torch or CUDA fails in its own ways
            continue
        product = next((getattr(found, name) for name in _PRODUCTS if hasattr(found, name)), None)
        repack = getattr(found, _REPACK, None)
        if product is None or repack is None:
            continue
        if _takes(product, set(_product_arguments(None, None, None, 0))) and _takes(repack, set(_repack_names())):
            return MarlinPackage(f"{distribution} {version}", product, repack, code_type)
    return None


def takes_shape(n: int, k: int, group: int) -> bool:
    """Whether Marlin's kernels multiply such a matrix; one group alone is another layout of scales."""
    return n % 64 == 0 and k % 128 == 0 and k % group == 0 and group < k


def pack_for(
    package: MarlinPackage,
    codes: torch.Tensor,
    scale: torch.Tensor,
    unit: float,
    multiprocessors: int,
    rounding: RoundingError,
) -> PackedByPackage:
    """Codes uint8 ``[n, k]`` and scales float16 ``[n, k / group]`` in the package's order."""
    import torch

    n, k = codes.shape
    wide = codes.to(torch.int64).reshape(n, k // 8, 8)
    words = sum((wide[:, :, i] << (4 * i) for i in range(8)), torch.zeros_like(wide[:, :, 0]))
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).T.contiguous()
    empty = torch.empty(0, dtype=torch.int32, device=codes.device)
    values = {"b_q_weight": signed, "perm": empty, "size_k": k, "size_n": n, "num_bits": 4, "is_a_8bit": False}
    permuted = scale.T.reshape(-1, 8, 8).transpose(1, 2).reshape(-1, n).contiguous()
    locks = max(multiprocessors, n // 64 * _LOCKS)
    workspace = torch.zeros(locks, dtype=torch.int32, device=codes.device)
    packed = package.repack(**_known_to(package.repack, values))
    return PackedByPackage(n, k, packed, permuted, workspace, empty, unit, rounding)


def multiply_by(package: MarlinPackage, x: torch.Tensor, matrix: PackedByPackage) -> torch.Tensor:
    """``x [m, k]`` float16 or bfloat16 times the matrix, in ``x``'s type, times ``unit``."""
    arguments = _product_arguments(x, matrix, package.code_type, len(x))
    return package.product(**_known_to(package.product, arguments))  # type: ignore[no-any-return]


def _product_arguments(x: Any, matrix: PackedByPackage | None, code_type: Any, m: int) -> dict[str, Any]:
    """Everything that some version of the operation takes, by name."""
    words, scale = (None, None) if matrix is None else (matrix.words, matrix.scale)
    empty, workspace = (None, None) if matrix is None else (matrix.empty, matrix.workspace)
    if scale is not None and x.dtype != scale.dtype:
        scale = scale.to(x.dtype)
    n, k = (0, 0) if matrix is None else (matrix.n, matrix.k)
    return {
        "a": x, "c": None, "b_q_weight": words, "b_bias": None, "b_scales": scale, "a_scales": None,
        "global_scale": None, "b_zeros": None, "g_idx": empty, "perm": empty, "workspace": workspace,
        "b_q_type": code_type, "size_m": m, "size_n": n, "size_k": k, "is_k_full": True, "use_atomic_add": False,
        "use_fp32_reduce": True, "is_zp_float": False,
    }  # fmt: skip


def _repack_names() -> tuple[str, ...]:
    return ("b_q_weight", "perm", "size_k", "size_n", "num_bits", "is_a_8bit")


def _takes(function: Callable[..., Any], known: set[str]) -> bool:
    """Whether every argument that ``function`` requires is known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.name in known for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD)


def _known_to(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    names = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in names}
