"""The search of one space: measure a part of its settings, so that the best of them is (nearly) the best of all.

What is measured goes to the store cell by cell, and to a study that says what comes next. Both outlive the process: a
search that was killed goes on, one that is run again measures nothing, and what the store knows is never measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from kbench.core import CorruptFile
from kbench.results import Record
from kbench.suites import Cell

from .cell_space import CellSpace, Setting
from .guide import REASON, Guide, distributions, setting_of
from .ranking import Observation, Ranking
from .study import give_up

# Measured of a space: a quarter, at least nine, at most 64.
_SHARE, _LEAST, _MOST = 0.25, 9, 64

# The search is over when so many measurements in a row gained less than this.
_PATIENCE, _GAIN = 32, 0.01

# A setting is not sampled further when it is surely slower than the best by this much.
_HOPELESS = 1.05

# So long another worker's trial may run before it is taken for dead: packing the experts of a large model takes half a
# minute.
_DEAD_SECONDS = 120.0
_POLL_SECONDS = 0.2

_RECORD, _CLAIMED, _STOPPED = "record", "claimed", "stopped"

# One record for a cell; sampling may end once it is surely slower than the seconds.
Measure = Callable[[Cell, float | None], Record]


@dataclass(slots=True)
class Searched:
    """What is known of a space when its search ends.

    Attributes:
        records: by setting, in the order in which they were measured.
        n_new: cells that this search measured.
        reason: why it ended, in words.
    """

    space: CellSpace
    records: dict[Setting, Record] = field(default_factory=dict)
    n_new: int = 0
    reason: str = ""

    @property
    def seconds(self) -> dict[Setting, float]:
        """Medians by setting."""
        return {setting: record.median for setting, record in self.records.items() if record.median}

    @property
    def best(self) -> Setting:
        """The fastest setting measured; the default where none was."""
        seconds = self.seconds
        return min(seconds, key=lambda setting: seconds[setting]) if seconds else self.space.start


def limit_of(space: CellSpace) -> int:
    """How many settings of ``space`` a search measures at most, those that were known included."""
    n = len(space.allowed)
    return min(n, max(_LEAST, min(_MOST, int(_SHARE * n))))


def search(
    space: CellSpace,
    study: Study,
    measure: Measure,
    known: Iterable[Record],
    *,
    similar: Sequence[Observation] = (),
    alone: bool = True,
    seed: int = 0,
    deadline: float = math.inf,
    progress: Callable[[int, int], None] | None = None,
) -> Searched:
    """Measures settings of ``space`` until its limit, or until nothing is gained any more.

    Args:
        study: what was tried before, here or on another machine of this kind; it is added to.
        known: records of the store, oldest first: settings among them are not measured.
        similar: what problems with the same axes showed: what is tried first.
        alone: no other worker is at work in ``study``.
        deadline: of ``time.monotonic``; no measurement begins after it.
        progress: called with settings known, and their limit.
    """
    if not space.allowed:
        return Searched(space, reason="nothing is allowed")
    told = _Told(space, study)
    told.add_known(known)
    study.sampler = Guide(space, Ranking(space, similar), seed)
    result = Searched(space)
    limit = limit_of(space)
    first_seen: dict[int, float] = {}
    while True:
        told.refresh()
        if progress is not None:
            progress(len(told.records), limit)
        result.reason = told.stop_reason(limit)
        others = [] if alone else told.running()
        if result.reason and not others:
            break
        if time.monotonic() >= deadline:
            result.reason = "the time is over"
            break
        if result.reason or len(told.records) + len(others) >= limit:
            _wait(study, others, first_seen)
            continue
        result.n_new += told.measure_one(measure, alone)
    if result.reason != "the time is over" and _STOPPED not in study.user_attrs:
        study.set_user_attr(_STOPPED, result.reason)
    result.records = told.records
    return result


def _wait(study: Study, others: Sequence[FrozenTrial], first_seen: dict[int, float]) -> None:
    """For other workers; one that takes too long is given up. By this machine's clock alone: theirs may be wrong."""
    now = time.monotonic()
    for trial in others:
        if now - first_seen.setdefault(trial.number, now) > _DEAD_SECONDS:
            give_up(study, trial.number)
    time.sleep(_POLL_SECONDS)


class _Told:
    """What a study holds of a space."""

    def __init__(self, space: CellSpace, study: Study) -> None:
        self._space, self._study = space, study
        self.records: dict[Setting, Record] = {}
        self._trials: list[FrozenTrial] = []
        self._failed: set[Setting] = set()
        self.refresh()

    def refresh(self) -> None:
        """Reads the study again."""
        self._trials = self._study.get_trials(deepcopy=False)
        records: dict[Setting, Record] = {}
        for trial in self._trials:
            setting = setting_of(self._space, trial.params)
            if setting is None or setting in records:
                continue
            if trial.state == TrialState.COMPLETE:
                record = self._record_of(trial, setting)
                if record is not None:
                    records[setting] = record
            elif trial.state == TrialState.FAIL and REASON in trial.user_attrs:
                self._failed.add(setting)
        self.records = records

    def _record_of(self, trial: FrozenTrial, setting: Setting) -> Record | None:
        """A trial's record, which another machine may have written; None if it is none, or of something else."""
        if setting in self.records:
            return self.records[setting]
        try:
            record = Record.from_json(str(trial.user_attrs.get(_RECORD, "")), where=self._study.study_name)
        except CorruptFile:
            return None
        whole = record.status == "ok" and record.median and self._space.setting_of(record) == setting
        return record if whole else None

    def running(self) -> list[FrozenTrial]:
        """Trials that are being measured."""
        return [trial for trial in self._trials if trial.state == TrialState.RUNNING]

    def add_known(self, known: Iterable[Record]) -> None:
        """Tells the study what the store knows and it does not."""
        newest: dict[Setting, Record] = {}
        for record in known:
            setting = self._space.setting_of(record)
            if setting is not None and record.status == "ok" and record.median:
                newest[setting] = record
        for setting, record in newest.items():
            if setting not in self.records:
                self._study.add_trial(
                    optuna.trial.create_trial(
                        value=record.median,
                        params=dict(zip(self._space.axes, setting, strict=True)),
                        distributions=distributions(self._space),
                        user_attrs={_RECORD: record.to_json()},
                    )
                )
        self.refresh()

    def stop_reason(self, limit: int) -> str:
        """Why no more is measured; empty while there is reason to go on."""
        n = len(self.records)
        if stopped := self._study.user_attrs.get(_STOPPED):
            return str(stopped)
        if n + len(self._failed) >= len(self._space.allowed):
            return f"all {n} settings were measured"
        if n >= limit:
            return f"{n} of {len(self._space.allowed)} settings were measured"
        best, last_gain = math.inf, 0
        for index, record in enumerate(self.records.values()):
            assert record.median is not None
            if record.median < (1 - _GAIN) * best:
                best, last_gain = record.median, index
        if n - 1 - last_gain >= max(_PATIENCE, sum(len(values) - 1 for values in self._space.axes.values())):
            return f"the last {n - 1 - last_gain} settings gained nothing"
        return ""

    def _claimed(self, mine: optuna.Trial, setting: Setting) -> bool:
        """Whether ``setting`` is this worker's to measure; another one may have asked at the same moment.

        Who writes a setting looks at the others' afterwards, so of two at least one sees the other. The higher number
        gives way; the lower one waits until the other has given way, or has claimed it without seeing this one.
        """
        until = time.monotonic() + _DEAD_SECONDS
        while time.monotonic() < until:
            rivals = [
                trial
                for trial in self._study.get_trials(deepcopy=False)
                if trial.number != mine.number
                and setting_of(self._space, trial.params) == setting
                and (trial.state != TrialState.FAIL or REASON in trial.user_attrs)
            ]
            if any(
                trial.number < mine.number or trial.state != TrialState.RUNNING or _CLAIMED in trial.user_attrs
                for trial in rivals
            ):
                return False
            if not rivals:
                mine.set_user_attr(_CLAIMED, True)
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def measure_one(self, measure: Measure, alone: bool) -> int:
        """Asks for a setting, measures it and tells; returns how many cells were measured."""
        trial = self._study.ask(distributions(self._space))
        setting = setting_of(self._space, trial.params)
        assert setting is not None
        if setting in self.records or setting in self._failed or not (alone or self._claimed(trial, setting)):
            give_up(self._study, trial.number)  # another worker has it
            return 0
        best = min((record.median for record in self.records.values() if record.median), default=None)
        try:
            record = measure(self._space.cell(setting), None if best is None else _HOPELESS * best)
        except BaseException:
            give_up(self._study, trial.number)
            raise
        if record.status == "ok" and record.median:
            trial.set_user_attr(_RECORD, record.to_json())
            self._study.tell(trial, record.median, skip_if_finished=True)
        else:
            trial.set_user_attr(REASON, f"{record.status}: {record.reason}")
            self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
        return 1


def observations(space: CellSpace, seconds: Mapping[Setting, float]) -> list[Observation]:
    """What ``seconds`` of one space tell about another with the same axes; nothing without its default."""
    start = seconds.get(space.start)
    return [(setting, math.log(s / start)) for setting, s in seconds.items()] if start else []
