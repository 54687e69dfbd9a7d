"""All cells of one problem that a search may measure: thread counts and kernel parameters."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kbench.core import Problem
from kbench.results import Record
from kbench.suites import Cell

from .search_space import SearchSpace

THREADS = "threads"

# Kernel parameters that change results. What a search may choose is never less exact than the defaults.
CHANGES_RESULTS = ("activation_planes",)

# Values of the axes, in their order.
Setting = tuple["int | str", ...]


@dataclass(frozen=True)
class CellSpace:
    """The settings of ``problem`` by ``implementation``.

    Attributes:
        axes: candidates by name: the thread count first, then kernel parameters.
        start: where nobody chooses: the first setting that is measured.
        allowed: every setting that may be measured, in the order of the axes.
    """

    problem: Problem
    implementation: str
    axes: Mapping[str, tuple[int | str, ...]] = field(hash=False)
    start: Setting
    allowed: tuple[Setting, ...] = field(hash=False, repr=False)

    def cell(self, setting: Setting) -> Cell:
        """What measures ``setting``; a parameter at its default is left out, as records do."""
        threads, *values = setting
        names = list(self.axes)[1:]
        block = {name: v for name, v, usual in zip(names, values, self.start[1:], strict=True) if v != usual}
        return Cell(self.problem, self.implementation, int(threads), block)

    def block(self, setting: Setting) -> dict[str, int | str]:
        """The kernel parameters of ``setting`` that are not at their defaults."""
        return dict(self.cell(setting).block)

    def setting_of(self, record: Record) -> Setting | None:
        """The setting that ``record`` measured; None if it is not of this space."""
        block = record.extra.get("block") or {}
        if record.implementation != self.implementation or not isinstance(block, dict) or record.threads is None:
            return None
        names = list(self.axes)[1:]
        if not set(block) <= set(names):
            return None
        values = (block.get(name, usual) for name, usual in zip(names, self.start[1:], strict=True))
        setting = (record.threads, *values)
        return setting if setting in self.members and record.key == self.cell(setting).key else None

    @functools.cached_property
    def members(self) -> frozenset[Setting]:
        """``allowed``, for asking."""
        return frozenset(self.allowed)

    def around(self, centre: Setting) -> Iterator[Setting]:
        """Allowed settings that differ from ``centre`` in one value, parameter by parameter."""
        for index, values in enumerate(self.axes.values()):
            for value in values:
                other = (*centre[:index], value, *centre[index + 1 :])
                if value != centre[index] and other in self.members:
                    yield other

    @property
    def digest(self) -> str:
        """Of the axes: a study of other candidates is another study."""
        return hashlib.sha256(repr(sorted(self.axes.items())).encode()).hexdigest()[:8]


def cell_space(
    problem: Problem,
    implementation: str,
    threads: Sequence[int],
    parameters: SearchSpace,
    *,
    forbidden: Callable[[Cell], bool] | None = None,
    fixed: Iterable[str] = CHANGES_RESULTS,
) -> CellSpace:
    """The space of ``threads`` × ``parameters``, without what ``forbidden`` forbids: that is never measured.

    ``fixed`` parameters keep their defaults. The most threads come first: a machine's default.
    """
    kept = {n: v for n, v in parameters.candidates.items() if n not in set(fixed) and len(v) > 1}
    axes: dict[str, tuple[int | str, ...]] = {THREADS: tuple(sorted(set(threads), reverse=True)), **kept}
    start: Setting = (axes[THREADS][0], *(parameters.defaults[name] for name in kept))
    everything = tuple(itertools.product(*axes.values()))
    space = CellSpace(problem, implementation, axes, start, everything)
    if forbidden is None:
        return space
    allowed = tuple(setting for setting in everything if not forbidden(space.cell(setting)))
    return CellSpace(problem, implementation, axes, start, allowed)
