"""The search of a whole plan: every problem that takes a share of its time, the largest first, then the choices."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbench.core import CPU, Phase
from kbench.measure import Host
from kbench.results import Record, Store
from kbench.suites import Cell, records_of, run_cells, stands_for, version_of

from .cell_space import CellSpace, Setting, cell_space
from .choice import Choice, Chooser
from .layout import Layout
from .module_group import Measured, module_groups, shares
from .placement import Solution
from .ranking import Observation
from .request import SearchRequest
from .search import Searched, observations, search
from .search_space import search_space
from .study import Studies, open_studies
from .thread_candidates import thread_candidates

# A problem that takes less of the workload's time is not searched: nothing that it gained would be noticed.
_WORTH_SEARCHING = 0.01

# The file of a search that was given no storage.
STUDY_FILE = "search.sqlite3"

_SUITE = "search"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ParameterSearch:
    """What a search found: by problem, and by group of modules."""

    searched: tuple[Searched, ...]
    choices: tuple[Choice, ...]
    skipped: int
    seconds: float

    @property
    def fields(self) -> dict[str, Any]:
        """For the JSON object."""
        return {
            "seconds": self.seconds,
            "n_measured": sum(table.n_new for table in self.searched),
            "spaces_left": self.skipped,
            "spaces": [_space_fields(table) for table in self.searched],
            "choices": [_choice_fields(choice) for choice in self.choices if not choice.is_usual],
        }


def _space_fields(table: Searched) -> dict[str, Any]:
    seconds, best = table.seconds, table.best
    return {
        "problem": table.space.problem.key,
        "implementation": table.space.implementation,
        "settings": len(table.space.allowed),
        "known": len(table.records),
        "measured_now": table.n_new,
        "reason": table.reason,
        "default_seconds": seconds.get(table.space.start),
        "best_seconds": seconds.get(best),
        "best": dict(zip(table.space.axes, best, strict=True)),
        "default": dict(zip(table.space.axes, table.space.start, strict=True)),
    }


def _choice_fields(choice: Choice) -> dict[str, Any]:
    return {
        "modules": list(choice.group.modules),
        "threads": {str(phase): choice.threads[phase] for phase in Phase},
        "block": dict(choice.block),
        "gain": choice.usual_seconds / choice.seconds - 1,
    }


def search_parameters(
    layout: Layout,
    solution: Solution,
    store: Store,
    request: SearchRequest,
    machine: Host,
    pinned: int | None,
    deadline: float,
    tell: Progress,
) -> ParameterSearch:
    """Searches threads and kernel parameters of what ``solution`` has on the CPU, until ``deadline`` at the latest.

    Raises:
        UserError, InvalidEnvironment: as ``open_studies``.
    """
    started = time.monotonic()
    assignment = layout.assignment(solution)
    groups = module_groups(layout, {name for name, placed in assignment.items() if placed.generate_device == CPU})
    taken = shares(groups)
    worth = [key for key in sorted(taken, key=lambda key: (-taken[key], str(key))) if taken[key] >= _WORTH_SEARCHING]
    where = request.storage or store.beside(machine.host_id, STUDY_FILE)
    with open_studies(where, machine.host_id) as studies:
        work = _Work(studies, store, request.seed, deadline, machine, pinned)
        tables: dict[Measured, Searched] = {}
        for index, key in enumerate(worth):
            name = f"searching {key[0].op} ({index + 1} of {len(worth)})"
            tables[key] = work.searched(key, functools.partial(tell, name))
        tell("choosing threads and kernel parameters", 0, 1)
        chosen = [group for group in groups if any(part.measured in tables for part in group.parts)]
        rest = {part.measured for group in chosen for part in group.parts} - set(tables)
        known = {key: work.known(key) for key in rest}
        chooser = Chooser({**tables, **known}, work.measured, layout.costs.roof)
        choices = tuple(chooser.choose(group) for group in chosen)
    late = sum(table.reason == "the time is over" for table in tables.values())
    return ParameterSearch(tuple(tables.values()), choices, late, time.monotonic() - started)


class _Work:
    """Measures for a search, and remembers what problems of a kind have shown."""

    def __init__(
        self, studies: Studies, store: Store, seed: int, deadline: float, machine: Host, pinned: int | None
    ) -> None:
        self._studies, self._store, self._seed, self._deadline = studies, store, seed, deadline
        self._machine, self._pinned = machine, pinned
        self._shown: dict[tuple[str, str, tuple[str, ...]], list[Observation]] = {}

    def space(self, key: Measured) -> CellSpace:
        problem, name = key
        counts = (self._pinned,) if self._pinned else thread_candidates(self._machine, problem)
        return cell_space(problem, name, counts, search_space(problem, name))

    def searched(self, key: Measured, progress: Callable[[int, int], None]) -> Searched:
        """The search of one space."""
        space = self.space(key)
        known = records_of(*key, self._store)
        kind = (key[0].op, key[1], tuple(space.axes))
        result = search(
            space,
            self._studies.of(space, version_of(key[1])),
            self._measure,
            known,
            similar=self._shown.get(kind, ()),
            alone=self._studies.alone,
            seed=self._seed,
            deadline=self._deadline,
            progress=progress,
        )
        self._adopt(result)
        self._shown.setdefault(kind, []).extend(observations(space, result.seconds))
        return result

    def known(self, key: Measured) -> Searched:
        """What is known of a space that is not worth a search."""
        space = self.space(key)
        result = Searched(space, reason="takes too little time")
        for record in records_of(*key, self._store):
            setting = space.setting_of(record)
            if setting is not None and record.median:
                result.records[setting] = record
        return result

    def measured(self, table: Searched, setting: Setting) -> Record | None:
        """One setting more of ``table``; None where it cannot be measured, or the time is over."""
        if time.monotonic() >= self._deadline:
            return None
        record = self._measure(table.space.cell(setting), None)
        if record.status != "ok":
            return None
        table.n_new += 1
        return record

    def _measure(self, cell: Cell, limit_seconds: float | None) -> Record:
        return run_cells([cell], self._store, suite=_SUITE, limit_seconds=limit_seconds)[0]

    def _adopt(self, result: Searched) -> None:
        """Stores what other machines of this kind measured: the next search here, and the report, know it too."""
        space = result.space
        ours = {space.setting_of(record) for record in records_of(space.problem, space.implementation, self._store)}
        for setting, record in result.records.items():
            if setting not in ours and stands_for(record, space.problem, space.implementation):
                self._store.append(record, suite=_SUITE)
