"""The keys and values of the tokens so far, of one sequence or of several."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from kbench.core import UserError
from kbench.kernels import PAGE_TOKENS, Cache, Stored, empty_rows, first_seen, pages_for
from kbench.model import ModelDescriptor, layer_kv_bytes, layer_state_bytes

STOP, RING = "stop", "ring"
OVERFLOWS = (STOP, RING)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How much a session keeps.

    Attributes:
        context: tokens that a sequence may have, or with ``ring`` those that its next token sees at the most.
        step: the most tokens of a sequence that one step takes.
        overflow: what happens after ``context`` tokens: ``stop``, or ``ring``: the oldest leave.
        sequences: how many there is room for, each with its own tokens.
        shared_tokens: of caches in pages, tokens that there is room for in all sequences together; 0: each one's whole
            context. Layers with a window of their own, which keep little, have room for each sequence's.
    """

    context: int
    step: int
    overflow: str = STOP
    sequences: int = 1
    shared_tokens: int = 0

    def window(self, model: ModelDescriptor, layer: int) -> int:
        """Tokens that one sees in a layer at the most, itself included; 0: all."""
        return model.layer_window(layer, self.context if self.overflow == RING else 0)

    def slots(self, model: ModelDescriptor, layer: int) -> int:
        """Tokens that a layer keeps of a sequence. A step writes its tokens before they are looked at: the first of
        them must still find its whole window, so that there are ``step - 1`` slots more than that::

            |<-------- window of the step's first token ------->|
            | p - w + 1 ........................................ p | p + 1 .... p + step - 1 |   window + step - 1 slots
        """
        window = self.window(model, layer)
        if not window:
            return self.context
        around = window + self.step - 1
        return around if self.overflow == RING else min(around, self.context)

    def pages(self, model: ModelDescriptor, layer: int) -> tuple[int, int]:
        """Where a layer's cache lies in pages: how many there are, and how many a sequence can have."""
        slots = self.slots(model, layer)
        each = pages_for(slots)
        whole = self.sequences * each
        return min(whole, pages_for(self.shared_tokens) or whole) if slots >= self.context else whole, each

    def layer_bytes(self, model: ModelDescriptor, layer: int, kv: str, paged: bool = False) -> tuple[int, int]:
        """Bytes of a layer's cache: for each token of context, and besides. ``paged``: in pages, whole ones."""
        if not model.attends(layer):
            return 0, self.sequences * layer_state_bytes(model)
        one = layer_kv_bytes(model, kv)
        slots, n = self.slots(model, layer), self.sequences
        if paged:
            n_pages, each = self.pages(model, layer)
            slots = each * PAGE_TOKENS
            if n_pages < n * each:  # whatever the context is
                return 0, n_pages * PAGE_TOKENS * one
        return (n * one, (slots - self.context) * n * one) if slots >= self.context else (0, slots * n * one)


class KvCache:
    """One ``Cache`` per layer, with room for ``shape.sequences`` sequences.

    ::

        caches[layer].k  [sequences, kv_heads, slots, head_dim]   a head's keys lie side by side: attention reads them
        caches[layer].v  [sequences, kv_heads, slots, head_dim]   in order (q8_0: bytes of blocks instead of elements)

        with MLA:
        caches[layer].k  [sequences, 1, slots, kv_lora + rope]    the latent that all heads share, never decompressed
        caches[layer].v  [sequences, 1, slots, 0]

    Position ``p`` is in slot ``p % slots``. Memory is the operating system's to page: it is committed as tokens come,
    and of a sequence that is freed it is given back, so that many sequences with large contexts cost what they hold.
    There is no table of pages besides the processor's own; on a GPU there is (``PlacedCaches``).

    Attributes:
        shape: how much is kept.
        capacity: tokens that a sequence may have (its ``context``).
    """

    def __init__(self, model: ModelDescriptor, shape: CacheShape, kv: str = "f16") -> None:
        self._begin(model, shape, kv)
        self.caches = {layer: self._empty(layer) for layer in range(model.n_layers)}

    def _begin(self, model: ModelDescriptor, shape: CacheShape, kv: str) -> None:
        if shape.context < 1:
            raise UserError(f"a context of {shape.context} tokens", where="context", accepted="at least 1 token")
        self.model, self.shape, self.kv, self.capacity = model, shape, kv, shape.context
        self._positions = [0] * shape.sequences
        # The highest position that was ever written to since a sequence was empty: of those before it, as many as
        # there are slots are still there.
        self._highest = [0] * shape.sequences

    @property
    def widths(self) -> tuple[int, int]:
        """Elements of a cached key and of a cached value."""
        model = self.model
        return (model.head_dim, model.head_dim) if model.mla is None else (sum(model.cached_widths), 0)

    def _empty(self, layer: int) -> Cache:
        heads, slots = self.model.cached_heads, self.shape.slots(self.model, layer)
        k, v = (_committed_lazily(self.kv, self.shape.sequences, heads, slots, width) for width in self.widths)
        return Cache(k, v, self.kv)

    @property
    def n_bytes(self) -> int:
        """With those that no token has taken yet."""
        return sum(cache.n_bytes for cache in self._all())

    def _all(self) -> Iterable[Any]:
        return self.caches.values()

    @property
    def position(self) -> int:
        """Tokens of sequence 0."""
        return self._positions[0]

    def position_of(self, sequence: int) -> int:
        """Tokens that a sequence has had, those that left a ring included."""
        return self._positions[sequence]

    def is_full(self, sequence: int = 0) -> bool:
        """Whether not one more token fits."""
        return self.shape.overflow == STOP and self._positions[sequence] >= self.capacity

    def reserve(self, tokens: Mapping[int, int]) -> None:
        """Makes sure that so many more tokens fit, by sequence.

        Raises:
            UserError: they do not. The cache is as before, and the caller may go on with fewer.
        """
        for sequence, n_tokens in tokens.items():
            if self.shape.overflow == STOP and self._positions[sequence] + n_tokens > self.capacity:
                self.refuse(self._positions[sequence], n_tokens, self.capacity)

    def has_room(self, tokens: Mapping[int, int]) -> bool:
        """Whether ``reserve`` finds room for so many more tokens, by sequence."""
        try:
            self.reserve(tokens)
        except UserError:
            return False
        return True

    @staticmethod
    def refuse(position: int, n_tokens: int, capacity: int) -> NoReturn:
        """Raises the error of a context that overflows."""
        cached = f"{position} tokens are cached and {n_tokens} more" if position else f"{n_tokens} tokens"
        raise UserError(
            f"{cached} do not fit a context of {capacity}",
            where="context",
            accepted=f"at most {capacity - position} more",
            todo=f"use --context {position + n_tokens} or more, --overflow ring, or a shorter text",
        )

    def takes_at_once(self, n_tokens: int, sequence: int = 0) -> bool:
        """Whether one step of so many tokens leaves in place what its first token sees."""
        end = self._positions[sequence] + n_tokens
        layers = range(self.model.n_layers)
        return all(end <= self.shape.slots(self.model, i) for i in layers) or n_tokens <= self.shape.step

    def begin_step(self, spans: Iterable[Sequence[int]]) -> None:
        """Notes what a step writes to from now on: what lay there has left, even if the step fails or is interrupted. A
        span is sequence, first position, tokens."""
        for sequence, position, n in spans:
            self._highest[sequence] = max(self._highest[sequence], position + n)

    def advance(self, spans: Iterable[Sequence[int]]) -> None:
        """Counts the tokens of a step that is done."""
        for sequence, position, n in spans:
            self._positions[sequence] = position + n

    def can_keep(self, position: int, sequence: int = 0) -> bool:
        """Whether a sequence's next token may be at ``position``: what it sees there has not left yet."""
        highest = self._highest[sequence]
        return not position or all(
            first_seen(position, self.shape.window(self.model, layer)) >= highest - self.shape.slots(self.model, layer)
            for layer in range(self.model.n_layers)
        )

    def truncate(self, position: int, sequence: int = 0) -> None:
        """Forgets every token of a sequence from ``position`` on; what comes next overwrites them.

        Raises:
            ValueError: there are fewer tokens.
            UserError: what the next token would see there has left the cache.
        """
        if not 0 <= position <= self._positions[sequence]:
            raise ValueError(f"cannot go to {position}: {self._positions[sequence]} tokens are cached")
        if position < self._positions[sequence] and not self.can_keep(position, sequence):
            raise UserError(
                f"tokens that position {position} sees have left the cache",
                where="context",
                accepted="0: a new beginning",
                todo="use a larger --context, or --overflow stop",
            )
        self._positions[sequence] = position
        if not position:
            self._highest[sequence] = 0

    def release(self, sequence: int) -> None:
        """Empties a sequence, and gives its memory back to the system."""
        self.truncate(0, sequence)
        for cache in self._all():
            for stored in (cache.k, cache.v):
                if isinstance(stored, np.ndarray):
                    _give_back(stored, sequence)

    def fork(self, source: int, target: int) -> None:
        """Makes ``target`` a copy of ``source``."""
        for cache in self._all():
            for stored in (cache.k, cache.v):
                used = min(self._highest[source], stored.shape[2])
                stored[target, :, :used] = stored[source, :, :used]
        self._positions[target], self._highest[target] = self._positions[source], self._highest[source]


def _committed_lazily(kv: str, sequences: int, heads: int, slots: int, d: int) -> Stored:
    """Zeros ``[sequences, heads, slots, d]`` that take memory page by page, where they are written. One sequence lies
    in large pages where the system grants them, which are quicker to read; several in small ones, which are committed
    and given back more finely."""
    model = empty_rows(kv, heads, 1, d)
    shape = (sequences, heads, slots, model.shape[-1])
    n_bytes = math.prod(shape) * model.itemsize
    if sequences == 1 or not n_bytes:
        return empty_rows(kv, sequences * heads, slots, d).reshape(shape)
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, model.dtype).reshape(shape)


def _give_back(stored: Stored, sequence: int) -> None:
    """Of the pages of ``_committed_lazily`` those that hold nothing else; they are zeros again."""
    owner: Any = stored
    while isinstance(owner, np.ndarray):
        owner = owner.base
    pages = owner.obj if isinstance(owner, memoryview) else owner
    if not isinstance(pages, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    size = stored[0].nbytes
    begin, end = sequence * size, (sequence + 1) * size
    begin, end = begin + -begin % mmap.PAGESIZE, end - end % mmap.PAGESIZE
    if begin < end:
        pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)
