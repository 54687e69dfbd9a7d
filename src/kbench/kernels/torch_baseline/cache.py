"""Caches as torch tensors, on any device: the same bytes and the same rounding as ``kernels.cache``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..cache import Cache, Stored, check_room, first_seen, slots, stored_shape

if TYPE_CHECKING:
    import torch

# A q8_0 block: a float16 scale, 32 int8.
_BLOCK, _BLOCK_BYTES = 32, 34


@dataclass(slots=True)
class StoredRows(ABC):
    """Keys and values of a layer as tensors, wherever a position's row lies: what is the same however they are kept."""

    k: torch.Tensor
    v: torch.Tensor
    kv: str

    @property
    def n_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.k, self.v))

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Tokens that a sequence has room for."""

    @abstractmethod
    def held(self, sequence: int, begin: int, end: int) -> list[torch.Tensor]:
        """What is stored of positions ``[begin, end)``: ``[heads, end - begin, stored width]`` of k and of v."""

    @abstractmethod
    def put(self, sequence: int, begin: int, rows: Sequence[torch.Tensor]) -> None:
        """Writes ``rows`` as ``held`` returns them."""

    def append(
        self, sequence: int, position: int, rows: Sequence[torch.Tensor], window: int = 0, widen: bool = True
    ) -> list[torch.Tensor]:
        """Writes ``rows`` of a sequence (of k, or of k and v, each ``[heads, tokens, width]``) behind ``position``
        tokens of it; what is cached from the first position on that any of them sees, in float32, or without ``widen``
        as it is stored (q8_0 in float32).

        Raises:
            UserError: they do not fit.
        """
        end = position + rows[0].shape[1]
        check_room(self.capacity, position, end - position, window)
        self.put(sequence, position, [encoded(self.kv, new, self.k) for new in rows])
        seen = self.held(sequence, first_seen(position, window), end)
        return [decoded(self.kv, stored, widen) for stored in seen[: len(rows)]]


@dataclass(slots=True)
class TorchCache(StoredRows):
    """A ``Cache`` whose ``k`` and ``v`` are torch tensors of the same shapes (bf16 as bfloat16, q8_0 as uint8)."""

    @classmethod
    def empty(cls, kv: str, heads: int, capacity: int, k: int, v: int, place: str, sequences: int = 1) -> TorchCache:
        """Zeros on torch device ``place``: ``capacity`` vectors of ``k`` and ``v`` elements a sequence and head."""
        import torch

        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "q8_0": torch.uint8}[kv]
        shapes = [(sequences, *stored_shape(kv, heads, capacity, d)) for d in (k, v)]
        made = [torch.zeros(shape, dtype=dtype, device=place) for shape in shapes]
        return cls(made[0], made[1], kv)

    @classmethod
    def over(cls, cache: Cache) -> TorchCache:
        """The same memory as ``cache``."""
        return cls(stored_tensor(cache.k), stored_tensor(cache.v), cache.kv)

    @property
    def capacity(self) -> int:
        """Slots of a sequence: position ``p`` is in slot ``p % capacity``."""
        return self.k.shape[2]

    def append_at(self, slot: torch.Tensor, hidden: torch.Tensor, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Writes ``rows``, of one token, into ``slot`` (int64 ``[1]``, on the device) of sequence 0; all that its slots
        hold, in float32: what of it is seen is for the caller to say, and ``hidden [1, capacity]`` is what is not."""
        found = []
        for stored, new in zip((self.k, self.v), rows, strict=False):
            stored[0].index_copy_(1, slot, encoded(self.kv, new, stored))
            found.append(decoded(self.kv, stored[0]))
        return found

    def held(self, sequence: int, begin: int, end: int) -> list[torch.Tensor]:
        """What is stored of positions ``[begin, end)``: ``[heads, end - begin, stored width]`` of k and of v."""
        where = slots(begin, end, self.capacity)
        return [stored[sequence][:, where] for stored in (self.k, self.v)]

    def put(self, sequence: int, begin: int, rows: Sequence[torch.Tensor]) -> None:
        """Writes ``rows`` as ``held`` returns them."""
        for stored, new in zip((self.k, self.v), rows, strict=False):
            stored[sequence][:, slots(begin, begin + new.shape[1], self.capacity)] = new


def stored_tensor(stored: Stored) -> torch.Tensor:
    """A numpy cache's array as a torch tensor over the same memory."""
    import torch

    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(stored)


def encoded(kv: str, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``rows [.., width]`` as a cache of type ``kv`` stores them, in ``like``."""
    return _encode(rows) if kv == "q8_0" else rows.to(like.dtype)


def decoded(kv: str, stored: torch.Tensor, widen: bool = True) -> torch.Tensor:
    """Stored numbers in float32, or without ``widen`` as they are (q8_0 in float32, too)."""
    if kv == "q8_0":
        return _decode(stored)
    return stored.float() if widen else stored


def _encode(rows: torch.Tensor) -> torch.Tensor:
    """Q8_0 as GGML defines it: scale = largest magnitude / 127, quants to nearest with halves away from zero."""
    import torch

    blocks = rows.float().reshape(*rows.shape[:-1], -1, _BLOCK)
    scale = blocks.abs().amax(dim=-1, keepdim=True) / 127
    scaled = blocks * torch.where(scale == 0, 0.0, 1 / scale)
    floor = scaled.abs().floor()
    quants = (scaled.sign() * (floor + (2 * (scaled.abs() - floor)).floor())).to(torch.int8)
    return torch.cat([scale.half().view(torch.uint8), quants.view(torch.uint8)], dim=-1).flatten(-2)


def _decode(stored: torch.Tensor) -> torch.Tensor:
    import torch

    blocks = stored.reshape(*stored.shape[:-1], -1, _BLOCK_BYTES)
    scale = blocks[..., :2].contiguous().view(torch.float16).float()
    return (blocks[..., 2:].contiguous().view(torch.int8).float() * scale).flatten(-2)
