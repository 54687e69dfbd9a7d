"""From a suite to its cells on this machine."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Iterator

from kbench.core import OPS, Problem, Unsupported, UserError, quant
from kbench.kernels import best, candidates, implementation
from kbench.measure import host

from .cell import Cell
from .schema import ALL_WORD, AUTO_WORD, MAX_THREADS_WORD, Axes, Suite


def _problems(axes: Axes) -> Iterator[Problem]:
    for values in itertools.product(*axes.values):
        problem = Problem(axes.op, values)
        for name in OPS[axes.op]:
            if name.startswith("quant"):
                try:
                    quant(problem.text(name))
                except Unsupported as error:
                    raise UserError(error.found, where=axes.where, accepted=error.accepted, todo=error.todo) from None
        if problem.has("context") and problem.integer("context") < problem.integer("tokens"):
            continue  # the tokens of a call are part of its context: a corner of the product that does not exist
        yield problem


def _names(word: str, problem: Problem) -> list[str]:
    if word == AUTO_WORD:
        return [best(problem)]
    if word == ALL_WORD:
        return [item.name for item, verdict in candidates(problem) if verdict.ok]
    return [implementation(word).name]


def expand(suite: Suite) -> tuple[Cell, ...]:
    """Every cell of ``suite`` once, in the suite's order; ``auto``, ``all`` and ``max`` are resolved here.

    Raises:
        UserError: an unknown implementation or storage type.
    """
    threads = dict.fromkeys(host().usable_cpus if word == MAX_THREADS_WORD else int(word) for word in suite.threads)
    cells = dict.fromkeys(
        Cell(problem, name, count)
        for axes in suite.axes
        for problem in _problems(axes)
        for word in suite.implementations
        for name in _names(word, problem)
        for count in threads
    )
    return tuple(cell for cell in cells if not any(matches(cell.key, pattern) for pattern in suite.exclude))


def matches(key: str, pattern: str) -> bool:
    """Whether ``pattern`` names a case key: as a glob of all of it, or as a part of it."""
    return pattern in key or fnmatch.fnmatchcase(key, pattern)


def select(cells: Iterable[Cell], pattern: str) -> tuple[Cell, ...]:
    """The cells whose case key ``pattern`` matches; a space and an implementation's name may follow in the pattern.

    Raises:
        UserError: it matches none.
    """
    cells = tuple(cells)
    chosen = tuple(c for c in cells if matches(c.key, pattern) or matches(f"{c.key} {c.implementation}", pattern))
    if not chosen:
        examples = ", ".join(dict.fromkeys(cell.key for cell in cells[:3]))
        raise UserError(f"filter {pattern!r} matches no case", accepted=f"a part or glob of keys such as {examples}")
    return chosen
