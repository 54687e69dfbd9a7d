"""A stored tensor read as numbers, through the gguf package's own dequantisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kbench.core import Unsupported, quant

from ..implementation import AnyArray, WeightData

# Numbers of one tensor are kept when they fit into this; a layer of 160 experts (15 GB in float32) is read anew.
KEEP_BYTES = 2 << 30


def dequantize(raw: npt.NDArray[np.uint8], quant_name: str, row: int) -> npt.NDArray[np.float32]:
    """``[rows, row]`` float32 of ``rows`` stored rows; ``raw`` is uint8 of any shape.

    Raises:
        Unsupported: the gguf package cannot read the type.
    """
    import gguf

    rows = np.ascontiguousarray(raw).reshape(-1, quant(quant_name).row_bytes(row))
    if quant_name == "F64":
        return rows.view(np.float64).astype(np.float32)
    try:
        numbers = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[quant_name])
    except (KeyError, NotImplementedError):
        raise Unsupported(f"no dequantisation of {quant_name}", todo="a newer gguf package may have it") from None
    return np.asarray(numbers, dtype=np.float32).reshape(-1, row)


class Tensor:
    """Numbers of one stored tensor in ``dtype``, in numpy's order: GGUF's ``(k, n, experts)`` is matrices ``[n, k]``.

    With ``keep`` everything is dequantised at once and kept; otherwise what is asked for, each time.
    """

    def __init__(self, weight: WeightData, dtype: npt.DTypeLike = np.float32, *, keep: bool = False) -> None:
        self.name, self.quant, self.shape = weight.name, weight.quant, weight.shape
        self.dtype = np.dtype(dtype)
        self.row = weight.shape[0]
        self._raw = weight.whole.reshape(-1, quant(weight.quant).row_bytes(self.row))
        self._numbers: AnyArray | None = None
        if keep and math.prod(weight.shape) * self.dtype.itemsize <= KEEP_BYTES:
            self._numbers = self._read(slice(None))

    def _read(self, rows: slice | npt.NDArray[np.integer]) -> AnyArray:
        return dequantize(self._raw[rows], self.quant, self.row).astype(self.dtype, copy=False)

    @property
    def n_bytes(self) -> int:
        return self._raw.nbytes if self._numbers is None else self._numbers.nbytes

    def rows(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> AnyArray:
        """``[len(ids), row]``."""
        index = np.asarray(ids)
        return self._read(index) if self._numbers is None else self._numbers[index]

    def matrix(self, index: int = 0) -> AnyArray:
        """Matrix ``index`` of a stack, ``[n, k]``; a plain matrix is number 0."""
        n = self.shape[1]
        rows = slice(index * n, (index + 1) * n)
        return self._read(rows) if self._numbers is None else self._numbers[rows]

    def stack(self) -> AnyArray:
        """Everything, in the tensor's own shape: ``[..., n, k]``."""
        return self.vector().reshape(self.shape[::-1])

    def vector(self) -> AnyArray:
        """All numbers, one dimension."""
        return (self._read(slice(None)) if self._numbers is None else self._numbers).reshape(-1)
