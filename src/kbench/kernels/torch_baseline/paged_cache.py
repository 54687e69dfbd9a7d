"""Caches in pages, as torch tensors on any device; and the pool that hands the pages out, to several layers at once.

::

    k, v    [heads, slots, width]     slots: 64 of page 0, 64 of page 1, ... : a head's rows of a page lie side by side
    table   int32 [sequences, pages]  a sequence's pages in the order of its positions; NO_PAGE where none is

Layers with equally many slots use one table: a page number is a page of each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..page_table import PAGE_TOKENS, PageTable, Range, pages_for
from .cache import StoredRows, TorchCache, decoded, encoded

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class PagedCache(StoredRows):
    """One layer's cache. That pages are there, and a sequence's alone
    where it is written to, is for the ``PagePool`` to see to."""

    table: torch.Tensor

    @property
    def capacity(self) -> int:
        """Tokens that a sequence has room for: a whole number of pages."""
        return self.table.shape[1] * PAGE_TOKENS

    def append_at(self, slot: torch.Tensor, hidden: torch.Tensor, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """As ``TorchCache.append_at``; what is ``hidden`` is zeros, whatever lies on pages that are nobody's."""
        row = self.table[0].long()
        to = row.index_select(0, slot // PAGE_TOKENS) * PAGE_TOKENS + slot % PAGE_TOKENS
        pages, found = row.clamp(min=0), []
        for stored, new in zip((self.k, self.v), rows, strict=False):
            stored.index_copy_(1, to, encoded(self.kv, new, stored))
            mine = self._pages(stored).index_select(1, pages).flatten(1, 2)
            found.append(decoded(self.kv, mine).masked_fill(hidden[..., None], 0))
        return found

    def held(self, sequence: int, begin: int, end: int) -> list[torch.Tensor]:
        """What is stored of positions ``[begin, end)``: ``[heads, end - begin, stored width]`` of k and of v."""
        where = self._slots(sequence, begin, end)
        return [stored.index_select(1, where) for stored in (self.k, self.v)]

    def put(self, sequence: int, begin: int, rows: Sequence[torch.Tensor]) -> None:
        """Writes ``rows`` as ``held`` returns them."""
        for stored, new in zip((self.k, self.v), rows, strict=False):
            stored.index_copy_(1, self._slots(sequence, begin, begin + new.shape[1]), new)

    def copy_pages(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies whole pages."""
        for stored in (self.k, self.v):
            pages = self._pages(stored)
            pages.index_copy_(1, targets, pages.index_select(1, sources))

    def _pages(self, stored: torch.Tensor) -> torch.Tensor:
        heads, slots, width = stored.shape
        return stored.view(heads, slots // PAGE_TOKENS, PAGE_TOKENS, width)

    def _slots(self, sequence: int, begin: int, end: int) -> torch.Tensor:
        """Where positions ``[begin, end)`` are: int64."""
        import torch

        at = torch.arange(begin, end, device=self.k.device)
        row = self.table[sequence].long()
        return row.index_select(0, at // PAGE_TOKENS % len(row)) * PAGE_TOKENS + at % PAGE_TOKENS


@dataclass(slots=True)
class PagePool:
    """Pages on torch device ``place``: ``table`` says whose they are, ``here`` is its copy that kernels read,
    ``caches`` are the layers'."""

    table: PageTable
    place: str
    here: torch.Tensor
    caches: dict[int, PagedCache] = field(default_factory=dict)

    @classmethod
    def on(cls, place: str, n_pages: int, sequences: int, pages: int, where: str) -> PagePool:
        """``n_pages`` altogether, ``pages`` of a sequence at the most. ``where``: what errors call it."""
        import torch

        table = PageTable(n_pages, sequences, pages, where)
        return cls(table, place, torch.from_numpy(table.rows).to(place, copy=True))

    def add(self, layer: int, kv: str, heads: int, k: int, v: int) -> PagedCache:
        """A cache for ``layer``, of vectors of ``k`` and ``v`` elements, zeros."""
        room = TorchCache.empty(kv, heads, len(self.table.owners) * PAGE_TOKENS, k, v, self.place)
        made = self.caches[layer] = PagedCache(room.k[0], room.v[0], kv, self.here)
        return made

    def write(self, ranges: Iterable[Range]) -> None:
        """Has pages there for positions that are written next, each its sequence's alone.

        Raises:
            UserError: too few are free; nothing has changed.
        """
        import torch

        copies = self.table.write(ranges)
        if copies:
            sources, targets = (torch.tensor(pages, device=self.place) for pages in zip(*copies, strict=True))
            for cache in self.caches.values():
                cache.copy_pages(sources, targets)
        for sequence in self.table.changed:
            self.here[sequence].copy_(torch.from_numpy(self.table.rows[sequence]))
        if self.table.changed and self.here.is_cuda:
            torch.cuda.synchronize(self.here.device)  # written on the default stream, read on others
        self.table.changed.clear()


def in_pages(cache: TorchCache, lengths: Sequence[int], place: str) -> PagedCache:
    """What ``cache`` holds of its sequences, which have had ``lengths`` tokens, in pages on torch device ``place``: all
    that there is room for. They lie in no order, as after a while of use."""
    import torch

    shape = len(lengths), pages_for(cache.capacity)
    table = np.random.default_rng(0).permutation(shape[0] * shape[1]).astype(np.int32).reshape(shape)
    k, v = (
        torch.empty(t.shape[1], table.size * PAGE_TOKENS, t.shape[3], dtype=t.dtype, device=place)
        for t in (cache.k, cache.v)
    )
    made = PagedCache(k, v, cache.kv, torch.from_numpy(table).to(place))
    for sequence, n in enumerate(lengths):
        begin = max(0, n - cache.capacity)
        made.put(sequence, begin, [rows.to(place) for rows in cache.held(sequence, begin, n)])
    return made
