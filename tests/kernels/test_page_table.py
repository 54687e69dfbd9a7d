"""Pages of a cache: whose they are after any steps, forks and cuts; and that no token is lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbench.core import UserError
from kbench.kernels import PAGE_TOKENS
from kbench.kernels.page_table import NO_PAGE, PageTable, pages_for

SEQUENCES, EACH = 3, 3
SLOTS = EACH * PAGE_TOKENS


class Pages:
    """A pool that holds numbers: every token that is written is one of its own. ``wanted`` has them by position."""

    def __init__(self, n_pages: int) -> None:
        self.table = PageTable(n_pages, SEQUENCES, EACH, "pool")
        self.numbers = np.full((n_pages, PAGE_TOKENS), -1)
        self.wanted: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self.highest = [0] * SEQUENCES
        self.written = 0

    def write(self, tokens: dict[int, int]) -> None:
        """One step: so many more tokens, by sequence."""
        ranges = [(s, len(self.wanted[s]), len(self.wanted[s]) + n) for s, n in tokens.items()]
        needed, free = self.table.needed(ranges), self.table.n_free
        rows, owners = self.table.rows.copy(), self.table.owners.copy()
        if needed > free:
            with pytest.raises(UserError, match=f"{needed - free} short"):
                self.table.write(ranges)
            np.testing.assert_array_equal(self.table.rows, rows)
            np.testing.assert_array_equal(self.table.owners, owners)
            return
        copies = self.table.write(ranges)
        assert not {a for a, _ in copies} & {b for _, b in copies}
        assert self.table.n_free == free - needed
        for source, target in copies:
            self.numbers[target] = self.numbers[source]
        for sequence, begin, end in ranges:
            for position in range(begin, end):
                page = self.table.rows[sequence, position // PAGE_TOKENS % EACH]
                assert self.table.owners[page] == 1, "who writes has the page alone"
                self.numbers[page, position % PAGE_TOKENS] = self.written
                self.wanted[sequence].append(self.written)
                self.written += 1
            self.highest[sequence] = max(self.highest[sequence], end)

    def truncate(self, sequence: int, position: int) -> None:
        self.table.truncate(sequence, position, self.highest[sequence])
        del self.wanted[sequence][position:]
        if not position:
            self.highest[sequence] = 0

    def fork(self, source: int, target: int) -> None:
        if source == target:
            return
        free = self.table.n_free + sum(self.alone(target))
        self.table.share(source, target)
        assert self.table.n_free == free, "a fork takes no pages"
        self.wanted[target], self.highest[target] = list(self.wanted[source]), self.highest[source]

    def alone(self, sequence: int) -> list[bool]:
        return [page != NO_PAGE and self.table.owners[page] == 1 for page in self.table.rows[sequence]]

    def check(self) -> None:
        """Every page belongs to whom the rows say, the others are free, and what may be looked at is there."""
        used = self.table.rows[self.table.rows != NO_PAGE]
        np.testing.assert_array_equal(self.table.owners, np.bincount(used, minlength=len(self.table.owners)))
        assert sorted(self.table._free) == np.flatnonzero(self.table.owners == 0).tolist()
        for row in self.table.rows:
            mine = row[row != NO_PAGE]
            assert len(set(mine.tolist())) == len(mine), "a sequence has a page once"
        for sequence, numbers in enumerate(self.wanted):
            for position in range(max(0, self.highest[sequence] - SLOTS), len(numbers)):
                page = self.table.rows[sequence, position // PAGE_TOKENS % EACH]
                assert page != NO_PAGE
                assert self.numbers[page, position % PAGE_TOKENS] == numbers[position]


sequences = st.integers(0, SEQUENCES - 1)
steps = st.one_of(
    st.tuples(st.just("write"), st.dictionaries(sequences, st.integers(1, 2 * PAGE_TOKENS), min_size=1)),
    st.tuples(st.just("decode"), st.dictionaries(sequences, st.just(1), min_size=1)),
    st.tuples(st.just("truncate"), sequences, st.floats(0, 1)),
    st.tuples(st.just("release"), sequences),
    st.tuples(st.just("fork"), sequences, sequences),
)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, SEQUENCES * EACH), st.lists(steps, max_size=25))
def test_any_course_of_things(n_pages: int, course: list[tuple[Any, ...]]) -> None:
    pages = Pages(n_pages)
    for what, *of in course:
        if what in ("write", "decode"):
            pages.write(of[0])
        elif what == "truncate":
            pages.truncate(of[0], round(of[1] * len(pages.wanted[of[0]])))
        elif what == "release":
            pages.truncate(of[0], 0)
        else:
            pages.fork(*of)
        pages.check()
    for sequence in range(SEQUENCES):
        pages.table.release(sequence)
    assert not pages.table.owners.any() and pages.table.n_free == n_pages
    assert (pages.table.rows == NO_PAGE).all()


def test_as_many_pages_as_sequences_can_have_are_enough() -> None:
    """Copies of shared pages take none beyond those that a sequence may have anyway."""
    pages = Pages(SEQUENCES * EACH)
    pages.write({0: 3 * SLOTS + 5})
    pages.fork(0, 1)
    pages.fork(0, 2)
    assert pages.table.n_free == SEQUENCES * EACH - EACH
    for _ in range(2 * SLOTS):
        pages.write({0: 1, 1: 1, 2: 1})
    pages.check()
    assert pages.table.n_free == 0 and not (pages.table.owners != 1).any()


@pytest.mark.parametrize("position", [0, 1, 63, 64, 65, 127, 128, 129])
def test_a_cut_gives_back_whole_pages(position: int) -> None:
    pages = Pages(EACH)
    pages.write({1: 130})
    pages.truncate(1, position)
    assert pages.table.n_free == EACH - pages_for(position)


def test_a_cut_behind_a_lap_keeps_what_lies_behind_the_newest_token() -> None:
    """Position 200 is in the ring's first page, whose rows behind it hold 9 to 63 of the lap before."""
    pages = Pages(EACH)
    pages.write({0: SLOTS + 9})
    pages.truncate(0, SLOTS - 2)
    assert pages.table.n_free == 0
    pages.check()
    pages.truncate(0, 70)
    assert pages.table.rows[0, 2] == NO_PAGE and pages.table.n_free == 1
    pages.check()


def test_what_is_short_is_named() -> None:
    table = PageTable(4, 2, 3, "cache of cuda:0")
    table.write([(0, 0, 129)])
    with pytest.raises(UserError) as caught:
        table.write([(1, 0, 65)])
    text = str(caught.value)
    assert "2 pages of 64 tokens are needed and 1 of 4 are free: 1 short" in text and "cache of cuda:0" in text
    assert "at most 64 tokens" in text
    table.release(0)
    assert table.write([(1, 0, 65)]) == [] and table.changed == {0, 1}
