"""Stored tensors as the native kernels read them: vectors, packed matrices, matrices left in the file, stacks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from kbench.core import Problem, Unsupported, quant

from ..implementation import FloatArray, WeightData
from ..reference import dequantize
from .emitters import Item
from .extension import extension, pool

if TYPE_CHECKING:
    from ._native import Matrix

# Formats that have kernels of their own, on packed weights or, with ``layout: raw``, on tiles packed on the fly.
PACKED_FORMATS = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4",
)  # fmt: skip
# Always left in the file: their tiles are dequantised on the fly and multiplied as float32.
DEQUANTISED_FORMATS = (
    "F64", "TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "NVFP4",
)  # fmt: skip
FORMATS = PACKED_FORMATS + DEQUANTISED_FORMATS


def make_item(problem: Problem, weight: WeightData, *, raw: bool = False) -> Item:
    """One tensor of an operation as the kernels read it.

    Raises:
        Unsupported: a storage type without a kernel, or a shape that is no vector, matrix or stack.
    """
    if len(weight.shape) == 1:
        return _vector(weight)
    if problem.op == "moe_experts" and len(weight.shape) == 2:  # a vector for each expert
        return _vector(weight).reshape(weight.shape[::-1])
    if problem.op == "head_linear" and len(weight.shape) == 2:
        return _halves_of_kv_b(problem, weight, raw)
    if problem.op == "mla_decompressed":
        return _expansion(problem, weight, raw)
    if len(weight.shape) == 2:
        return _matrix(weight.quant, weight.raw, weight.shape[1], weight.shape[0], raw)
    if len(weight.shape) == 3:
        k, n, count = weight.shape
        size = quant(weight.quant).row_bytes(k) * n
        pieces = weight.parts or [weight.raw[i * size : (i + 1) * size] for i in range(count)]
        return [_matrix(weight.quant, piece, n, k, raw) for piece in pieces]
    raise Unsupported(f"{weight.name} has {len(weight.shape)} dimensions", accepted="1, 2 or 3")


def _vector(weight: WeightData) -> FloatArray:
    return np.ascontiguousarray(dequantize(weight.raw, weight.quant, weight.shape[0]).reshape(-1), np.float32)


def _matrix(quant_name: str, stored: Any, n: int, k: int, raw: bool) -> Matrix:
    stored = np.ascontiguousarray(stored)
    if quant_name in PACKED_FORMATS and not raw:
        made: Matrix = extension().pack(quant_name, stored, n, k, pool())
    elif quant_name in FORMATS:
        _hand_over_grid(quant_name)
        made = extension().keep_raw(quant_name, stored, n, k)
    else:
        raise Unsupported(f"no native kernel for {quant_name} yet", accepted=", ".join(FORMATS))
    return made


@functools.cache
def _hand_over_grid(quant_name: str) -> None:
    """Gives the extension the grid that ``quant_name`` stores indices into, if it does: the gguf package's own."""
    from gguf import quants

    traits: Any = getattr(quants, quant_name, None)
    if getattr(traits, "grid_hex", None) is None:
        return
    traits.init_grid()
    extension().set_grid(quant_name, np.ascontiguousarray(traits.grid, np.int8).reshape(-1))


def _halves_of_kv_b(problem: Problem, weight: WeightData, raw: bool) -> list[Matrix]:
    """Each head's matrix out of a layer's ``kv_b`` ``[heads * (nope + v), kv_lora]``.

    Its last ``n`` rows as they are stored when they read the latent; else its first ``k`` rows transposed, which
    stored blocks cannot express: dequantised and stored anew as the problem's type.
    """
    heads, n, k = (problem.integer(name) for name in ("heads", "n", "k"))
    kv_lora, rows = weight.shape[0], weight.shape[1] // heads
    row_bytes = quant(weight.quant).row_bytes(kv_lora)
    per_head = [weight.raw[h * rows * row_bytes : (h + 1) * rows * row_bytes] for h in range(heads)]
    if k == kv_lora:
        return [_matrix(weight.quant, stored[(rows - n) * row_bytes :], n, k, raw) for stored in per_head]
    if n != kv_lora:
        raise Unsupported(f"{weight.name} is {kv_lora} wide; {problem.key} needs one side of it that wide")
    return [_turned(dequantize(stored, weight.quant, kv_lora)[:k], problem.text("quant")) for stored in per_head]


def _expansion(problem: Problem, weight: WeightData, raw: bool) -> list[Matrix]:
    """Each head's matrix that multiplies a latent out to keys, then to values.

    Of a layer's ``kv_b`` both, as they are stored; ``v_b`` too; ``k_b`` is stored the other way round: dequantised,
    turned and stored again as the problem's type.
    """
    heads, kv_lora, nope, v = (problem.integer(name) for name in ("heads", "kv_lora", "nope", "v"))
    size = weight.raw.size // heads
    per_head = [weight.raw[h * size : (h + 1) * size] for h in range(heads)]
    if weight.shape == (nope, kv_lora, heads):
        return [_turned(dequantize(stored, weight.quant, nope), problem.text("quant_k")) for stored in per_head]
    if weight.shape == (kv_lora, v, heads):
        return [_matrix(weight.quant, stored, v, kv_lora, raw) for stored in per_head]
    if weight.shape != (kv_lora, heads * (nope + v)):
        raise Unsupported(f"{weight.name} is {weight.shape}", accepted="kv_b, or k_b and v_b")
    end = nope * quant(weight.quant).row_bytes(kv_lora)
    keys = [_matrix(weight.quant, stored[:end], nope, kv_lora, raw) for stored in per_head]
    return keys + [_matrix(weight.quant, stored[end:], v, kv_lora, raw) for stored in per_head]


def _turned(rows: FloatArray, quant_name: str) -> Matrix:
    """The transpose of ``rows``, packed as ``quant_name``."""
    from gguf import GGMLQuantizationType, quants

    turned = quants.quantize(np.ascontiguousarray(rows.T), GGMLQuantizationType[quant_name])
    return _matrix(quant_name, turned.view(np.uint8).reshape(-1), rows.shape[1], rows.shape[0], raw=False)


def item_bytes(item: Item) -> int:
    """Bytes in memory; of a raw matrix, of the file."""
    if isinstance(item, list):
        return sum(matrix.n_bytes for matrix in item)
    return item.nbytes if isinstance(item, np.ndarray) else item.n_bytes
