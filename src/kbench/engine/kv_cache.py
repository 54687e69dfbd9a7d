"""The keys and values of the tokens so far."""

from __future__ import annotations

from typing import NoReturn

from kbench.core import UserError
from kbench.kernels import Cache, empty_rows
from kbench.model import ModelDescriptor


class KvCache:
    """One ``Cache`` per layer, allocated once for ``capacity`` tokens.

    ::

        caches[layer].k  [kv_heads, capacity, head_dim]   a head's keys lie side by side: attention reads them in order
        caches[layer].v  [kv_heads, capacity, head_dim]   (q8_0: bytes of blocks instead of elements)

        with MLA:
        caches[layer].k  [1, capacity, kv_lora + rope]    the latent that all heads share, never decompressed
        caches[layer].v  [1, capacity, 0]

    Attributes:
        capacity: tokens that fit.
        position: tokens that are in it.
    """

    def __init__(self, model: ModelDescriptor, capacity: int, kv: str = "f16") -> None:
        if capacity < 1:
            raise UserError(f"a context of {capacity} tokens", where="context", accepted="at least 1 token")
        self.capacity, self.kv, self.position = capacity, kv, 0
        k, v = (model.head_dim,) * 2 if model.mla is None else (sum(model.cached_widths), 0)
        heads = model.cached_heads
        self.caches = {
            layer: Cache(empty_rows(kv, heads, capacity, k), empty_rows(kv, heads, capacity, v), kv)
            for layer in range(model.n_layers)
        }

    @property
    def n_bytes(self) -> int:
        return sum(cache.n_bytes for cache in self.caches.values())

    def reserve(self, n_tokens: int) -> None:
        """Makes sure that ``n_tokens`` more fit.

        Raises:
            UserError: they do not. The cache is as before, and the caller may go on with fewer.
        """
        if self.position + n_tokens > self.capacity:
            self.refuse(self.position, n_tokens, self.capacity)

    @staticmethod
    def refuse(position: int, n_tokens: int, capacity: int) -> NoReturn:
        """Raises the error of a context that overflows."""
        cached = f"{position} tokens are cached and {n_tokens} more" if position else f"{n_tokens} tokens"
        raise UserError(
            f"{cached} do not fit a context of {capacity}",
            where="context",
            accepted=f"at most {capacity - position} more",
            todo=f"use --context {position + n_tokens} or more, or a shorter text",
        )

    def truncate(self, position: int) -> None:
        """Forgets every token from ``position`` on; what comes next overwrites them."""
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot go to {position}: {self.position} tokens are cached")
        self.position = position
