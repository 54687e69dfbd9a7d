"""Pages of a cache: which of them hold which tokens of which sequence.

A CPU's system commits memory where it is written; a GPU's is taken when it is asked for. So a cache there is a pool of
pages, and a table says where a sequence's tokens lie::

    sequence 0    [ 3 | 0 | 7 | - ]    positions 0..63 in page 3, 64..127 in page 0, 128.. in page 7; no fourth one yet
    sequence 1    [ 3 | 0 | 5 | - ]    forked from it behind 128 tokens and more: two pages are still both's

A page belongs to as many sequences as have it in their rows. Who writes to one that is not its alone gets a copy first.
Position ``p`` is on page ``p // PAGE_TOKENS % pages`` of its row: a ring is a whole number of pages, so that what lies
side by side on one page does so at every lap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from kbench.core import UserError

# Tokens of a page. Kernels read blocks of 32 or 64 tokens, each on one page: the longest block. A page of DeepSeek's
# latents is 64 x 576 x 2 bytes = 72 KiB, of a head of 128 16 KiB: rows side by side that memory reads at full speed.
# And of a sequence 32 tokens' room is left over on average: of 64 conversations of 1000 tokens, 3 %.
PAGE_TOKENS = 64
# In a row of the table: nothing is there.
NO_PAGE = -1

# Positions [begin, end) of a sequence: sequence, begin, end.
Range = tuple[int, int, int]


def pages_for(slots: int) -> int:
    """Pages that hold ``slots`` tokens of a sequence."""
    return -(-slots // PAGE_TOKENS)


class PageTable:
    """The pages of one pool, and whose they are: numbers alone, the tokens are somebody else's.

    Attributes:
        rows: int32 ``[sequences, pages]``: a sequence's pages in the order of its positions, or ``NO_PAGE``.
        owners: int32 ``[n_pages]``: sequences that have a page.
        changed: sequences whose rows have changed since somebody emptied it.
    """

    def __init__(self, n_pages: int, sequences: int, pages: int, where: str) -> None:
        """``n_pages`` altogether, ``pages`` of a sequence at the most. ``where``: what errors call it."""
        self.rows = np.full((sequences, pages), NO_PAGE, np.int32)
        self.owners = np.zeros(n_pages, np.int32)
        self.changed: set[int] = set()
        self._free = list(range(n_pages))[::-1]
        self._where = where

    @property
    def n_free(self) -> int:
        return len(self._free)

    def needed(self, ranges: Iterable[Range]) -> int:
        """Free pages that writing ``ranges`` takes: for tokens that have none, and for copies of pages that others have
        too. The last one that writes to a page has it for itself."""
        absent, writers = 0, Counter[int]()
        for sequence, begin, end in ranges:
            for index in self._indices(begin, end):
                page = int(self.rows[sequence, index])
                if page == NO_PAGE:
                    absent += 1
                elif self.owners[page] > 1:
                    writers[page] += 1
        return absent + sum(min(count, int(self.owners[page]) - 1) for page, count in writers.items())

    def check(self, ranges: Iterable[Range]) -> None:
        """Raises UserError where fewer pages are free than writing ``ranges`` takes."""
        needed = self.needed(ranges)
        if needed > self.n_free:
            raise UserError(
                f"{needed} pages of {PAGE_TOKENS} tokens are needed and {self.n_free} of {len(self.owners)} are free: "
                f"{needed - self.n_free} short",
                where=self._where,
                accepted=f"at most {self.n_free * PAGE_TOKENS} tokens on pages of their own",
                todo="free a sequence, forget tokens of one, or load with a larger cache_tokens",
            )

    def write(self, ranges: Iterable[Range]) -> list[tuple[int, int]]:
        """Makes sure that each sequence has the pages of its range, and has them for itself. Returns the copies that
        must be made before anything is written: from page, to page; no page is in both roles.

        Raises:
            UserError: as ``check``; nothing has changed.
        """
        ranges = [one for one in ranges if not self._is_alone(*one)]
        self.check(ranges)
        copies = []
        for sequence, begin, end in ranges:
            row = self.rows[sequence]
            for index in self._indices(begin, end):
                page = int(row[index])
                if page != NO_PAGE and self.owners[page] == 1:
                    continue
                row[index] = fresh = self._free.pop()
                self.owners[fresh] = 1
                self.changed.add(sequence)
                if page != NO_PAGE:
                    self.owners[page] -= 1
                    copies.append((page, fresh))
        return copies

    def truncate(self, sequence: int, position: int, highest: int) -> None:
        """Gives back pages on which no token before ``position`` can be. ``highest``: tokens that the sequence has had
        at the most since it was empty."""
        if not position:
            self.release(sequence)
            return
        n_pages = self.rows.shape[1]
        first, last = pages_for(position), pages_for(highest) - 1
        for number in range(max(first, last - n_pages + 1), last + 1):
            # Behind the newest token of a later lap lie those of the lap before.
            if number < n_pages or (number + 1) * PAGE_TOKENS <= highest:
                self._give_back(sequence, number % n_pages)

    def release(self, sequence: int) -> None:
        """Gives back all pages of a sequence."""
        for index in range(self.rows.shape[1]):
            self._give_back(sequence, index)

    def share(self, source: int, target: int) -> None:
        """Gives ``target``, whatever it had, the pages of ``source``."""
        self.release(target)
        self.rows[target] = self.rows[source]
        for page in self.rows[source].tolist():
            if page != NO_PAGE:
                self.owners[page] += 1
        self.changed.add(target)

    def _give_back(self, sequence: int, index: int) -> None:
        page = int(self.rows[sequence, index])
        if page == NO_PAGE:
            return
        self.rows[sequence, index] = NO_PAGE
        self.changed.add(sequence)
        self.owners[page] -= 1
        if not self.owners[page]:
            self._free.append(page)

    def _is_alone(self, sequence: int, begin: int, end: int) -> bool:
        """Whether a sequence has the pages of its range for itself: in decode, in all steps but one of 64."""
        pages = [self.rows[sequence, index] for index in self._indices(begin, end)]
        return all(page != NO_PAGE and self.owners[page] == 1 for page in pages)

    def _indices(self, begin: int, end: int) -> list[int]:
        """Where in a row the pages of positions ``[begin, end)`` stand, each once."""
        if begin >= end:
            return []
        n_pages = self.rows.shape[1]
        first, last = begin // PAGE_TOKENS, (end - 1) // PAGE_TOKENS
        return [number % n_pages for number in range(max(first, last - n_pages + 1), last + 1)]
