"""Caches: what attention keeps of the tokens so far, in memory and as numbers.

====  ============================  =======================================
kv    array                         element
====  ============================  =======================================
f32   float32 ``[.., d]``           itself
f16   float16 ``[.., d]``           IEEE half
bf16  uint16 ``[.., d]``            the upper half of a float32's bits
q8_0  uint8 ``[.., d / 32 * 34]``   blocks of 32: a float16 scale, 32 int8
====  ============================  =======================================

Rounding is part of what a cache type means, and every implementation repeats it bit by bit: to nearest, ties to even;
q8_0 as GGML defines it (scale = largest magnitude / 127 in float32, quants with halves away from zero).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import KV_TYPES, Problem, Unsupported, UserError, check_kv, kv_bytes

Stored = npt.NDArray[np.generic]

_DTYPES: dict[str, type[np.generic]] = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "q8_0": np.uint8}
_TYPE_OF = {np.dtype(dtype): kv for kv, dtype in _DTYPES.items()}


@dataclass(slots=True)
class Cache:
    """One layer's cache, written by attention in place.

    GQA: ``k`` and ``v`` are ``[sequences, kv_heads, capacity, d]``. MLA: ``k`` is the latent ``[sequences, 1, capacity,
    kv_lora + rope]`` and ``v`` is empty. Without the first dimension they are of one sequence, and get it. Position
    ``p`` is in slot ``p % capacity``: with a window, attention goes on around the ring. ``kv`` names how they are
    stored (q8_0 rows are longer than ``d``); by default what the arrays' type stands for.

    Raises:
        ValueError: ``kv`` and the arrays' types disagree.
    """

    k: Stored
    v: Stored
    kv: str = ""

    def __post_init__(self) -> None:
        if self.k.ndim == 3:
            self.k, self.v = self.k[None], self.v[None]
        self.kv = self.kv or _TYPE_OF.get(self.k.dtype, "")
        if not self.kv or {self.k.dtype, self.v.dtype} != {np.dtype(_DTYPES[self.kv])}:
            raise ValueError(f"a {self.kv or 'new'} cache of {self.k.dtype} and {self.v.dtype}")

    @property
    def n_bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes


def stored_shape(kv: str, heads: int, capacity: int, d: int) -> tuple[int, int, int]:
    """Shape of the array that holds ``[heads, capacity, d]``.

    Raises:
        UserError, Unsupported: as ``check_kv``.
    """
    return heads, capacity, kv_bytes(kv, d) // np.dtype(_DTYPES[kv]).itemsize


def empty_rows(kv: str, heads: int, capacity: int, d: int) -> Stored:
    """Zeros of ``stored_shape``; pages cost memory only once they are written."""
    return np.zeros(stored_shape(kv, heads, capacity, d), _DTYPES[kv])


def as_rows(kv: str, raw: npt.NDArray[np.uint8], shape: tuple[int, int, int]) -> Stored:
    """Bytes of stored vectors as the array of ``stored_shape`` of a cache of type ``kv``."""
    return raw.view(_DTYPES[kv]).reshape(shape)


def encode(kv: str, rows: npt.NDArray[Any]) -> Stored:
    """``rows [.., d]`` as a cache of type ``kv`` stores them."""
    if kv in ("f32", "f16"):
        return rows.astype(_DTYPES[kv])
    from gguf import GGMLQuantizationType, quants

    floats = np.ascontiguousarray(rows, np.float32)
    stored = quants.quantize(floats.reshape(-1, floats.shape[-1]), GGMLQuantizationType[KV_TYPES[kv]])
    return stored.view(_DTYPES[kv]).reshape(*floats.shape[:-1], -1)


def decode(kv: str, stored: Stored, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """``encode``'s numbers back, ``[.., d]`` in ``dtype``."""
    if kv in ("f32", "f16"):
        return stored.astype(dtype)
    from gguf import GGMLQuantizationType, quants

    raw = np.ascontiguousarray(stored).reshape(-1, stored.shape[-1]).view(np.uint8)
    numbers = quants.dequantize(raw, GGMLQuantizationType[KV_TYPES[kv]])
    return np.asarray(numbers, dtype=dtype).reshape(*stored.shape[:-1], -1)


def first_seen(position: int, window: int) -> int:
    """The first position that a token at ``position`` sees through a window (0: none)."""
    return max(0, position - window + 1) if window else 0


def check_room(capacity: int, position: int, tokens: int, window: int = 0) -> None:
    """Raises UserError where ``tokens`` at ``position`` do not fit ``capacity`` slots. With a window they may go around
    the ring, as long as the last of them does not overwrite what the first one sees."""
    around = 0 < window <= capacity - tokens + 1
    if position + tokens > capacity and not around:
        found = f"{position + tokens} tokens in a cache of {capacity}"
        raise UserError(found, where="attention", todo="ask for more context")


def slots(begin: int, end: int, capacity: int) -> slice | npt.NDArray[np.int64]:
    """Where positions ``[begin, end)`` are."""
    lap = begin // capacity * capacity
    if end - lap <= capacity:
        return slice(begin - lap, end - lap)
    return np.arange(begin, end) % capacity


def append(stored: Stored, kv: str, sequence: int, position: int, rows: npt.NDArray[Any], window: int = 0) -> None:
    """Writes ``rows [heads, tokens, d]`` of a sequence, behind ``position`` tokens of it, into ``[sequences, heads,
    capacity, d]``.

    Raises:
        UserError: they do not fit.
    """
    tokens, capacity = rows.shape[1], stored.shape[2]
    check_room(capacity, position, tokens, window)
    stored[sequence][:, slots(position, position + tokens, capacity)] = encode(kv, rows)


def cached(stored: Stored, sequence: int, begin: int, end: int) -> Stored:
    """The stored rows of positions ``[begin, end)``: ``[heads, end - begin, d]``."""
    found: Stored = stored[sequence][:, slots(begin, end, stored.shape[2])]
    return found


def refusal(problem: Problem) -> str:
    """Why no implementation can keep the cache of ``problem``; empty where it has none or one that is fine."""
    if not problem.has("kv"):
        return ""
    widths = ("d",) if problem.op == "attention" else ("kv_lora", "rope")
    try:
        check_kv(problem.text("kv"), *(problem.integer(name) for name in widths))
    except (UserError, Unsupported) as error:
        return error.message
    return ""
