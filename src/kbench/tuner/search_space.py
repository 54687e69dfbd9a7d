"""What a search over kernel parameters may try: read from the declaration of the implementation, never written here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kbench.core import Block, Problem
from kbench.kernels import BlockParameter, implementation


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Candidates and defaults by parameter, in the order of the declaration."""

    candidates: Mapping[str, tuple[int | str, ...]]
    defaults: Block

    @property
    def n_settings(self) -> int:
        """How many ``settings`` there are; 1 where there is nothing to choose."""
        return math.prod(len(values) for values in self.candidates.values())

    def settings(self) -> Iterator[Block]:
        """Every combination once, the defaults first; a parameter at its default is left out, so that records of the
        same setting have the same identity."""
        yield {}
        for values in itertools.product(*self.candidates.values()):
            chosen = {n: v for n, v in zip(self.candidates, values, strict=True) if v != self.defaults[n]}
            if chosen:
                yield chosen


def search_space_of(parameters: Iterable[BlockParameter]) -> SearchSpace:
    """The space that ``parameters`` span."""
    parameters = tuple(parameters)
    return SearchSpace({p.name: p.candidates for p in parameters}, {p.name: p.default for p in parameters})


def search_space(problem: Problem, name: str) -> SearchSpace:
    """What can be chosen of the kernels of implementation ``name`` for ``problem``.

    Raises:
        UserError: there is no such implementation.
    """
    return search_space_of(implementation(name).block_parameters(problem))
