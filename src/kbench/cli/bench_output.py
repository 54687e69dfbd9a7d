"""What every kind of `kbench bench` prints alike: keys, progress, what failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kbench.core import CheckBroken

from .output import print_json, progress_bar, shown

if TYPE_CHECKING:
    from kbench.results import Record

# Of a progress bar's words: what fits a line beside the bar.
_WORDS = 70

Progress = Callable[[int, int, str], None]


@contextmanager
def progress_of(name: str, total: int) -> Iterator[Progress]:
    """A progress bar that is told (done, all, what comes next)."""
    with progress_bar() as bar:
        task = bar.add_task(name, total=total)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:_WORDS] or name)

        yield progress


def print_keys(about: Mapping[str, Any], keys: Iterable[str], as_json: bool) -> None:
    """What would be measured, for ``--list``."""
    found = list(keys)
    print_json("bench", 1, {**about, "cells": found}) if as_json else print(*map(shown, found), sep="\n")


def raise_broken(records: Sequence[Record], noun: str) -> None:
    """The first of the records that say that something is broken.

    Raises:
        CheckBroken: there is one.
    """
    broken = [record for record in records if record.status in ("wrong", "crashed", "timeout")]
    if broken:
        first = broken[0]
        found = f"{len(broken)} of {len(records)} {noun} {first.status}: {first.reason}"
        raise CheckBroken(found, where=f"{first.key} {first.implementation}")
