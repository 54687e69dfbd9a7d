"""The sampler of a search: which setting is measured next. A pure function of what was measured before.

In this order: the default; the values of one axis after the other, each time around the best so far, as far as nothing
speaks against them; then by turns what the additive model expects most of, a neighbour of the best so far, and what TPE
proposes. No setting is proposed twice, and none that is not allowed.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from .cell_space import CellSpace, Setting
from .ranking import Ranking

# TPE repeats itself; after so many proposals that are taken the model's next one is as good.
_TPE_TRIES = 8

# A value is not tried at first where similar problems say that it costs this much.
_KNOWN_LOSS = 0.05

# A round goes on from another value only where that gained this much: two measurements of one setting differ by as
# much, and what lies around the default is more likely to be good than what lies around a lucky one.
_NOISE = 0.01

# A trial that was measured and failed says why in this attribute; without it it was lost with its worker.
REASON = "reason"


def distributions(space: CellSpace) -> dict[str, BaseDistribution]:
    """Of the axes that leave a choice. Categorical: a thread count may be good between two that are bad."""
    return {name: CategoricalDistribution(values) for name, values in space.axes.items()}


def setting_of(space: CellSpace, params: Mapping[str, Any]) -> Setting | None:
    """The setting of a trial; None while not all of its parameters are known."""
    return tuple(params[name] for name in space.axes) if all(name in params for name in space.axes) else None


class Guide(BaseSampler):
    """Proposes settings of ``space``; with the same trials and seed the same ones."""

    def __init__(self, space: CellSpace, ranking: Ranking, seed: int = 0) -> None:
        self._space, self._ranking, self._seed = space, ranking, seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions(self._space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise AssertionError(f"{param_name} belongs to the space and was proposed with it")

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        taken: set[Setting] = set()
        measured: dict[Setting, float] = {}
        undecided = 0
        for other in others:
            setting = setting_of(self._space, other.params)
            if other.state == TrialState.RUNNING and setting is None and other.number < trial.number:
                undecided += 1  # another worker is about to take what stands first here
            if setting is None or (other.state == TrialState.FAIL and REASON not in other.user_attrs):
                continue
            taken.add(setting)
            if other.state == TrialState.COMPLETE and other.value is not None:
                measured[setting] = min(other.value, measured.get(setting, other.value))
        crowded = any(other.state == TrialState.RUNNING for other in others)
        for setting in self._proposals(study, trial, measured, taken, crowded):
            if setting in taken:
                continue
            if undecided:
                undecided -= 1
                taken.add(setting)
                continue
            return dict(zip(self._space.axes, setting, strict=True))
        # All are taken: the caller asks only while some are left, so another worker was quicker.
        return dict(zip(self._space.axes, self._space.start, strict=True))

    def _proposals(
        self, study: Study, trial: FrozenTrial, measured: Mapping[Setting, float], taken: set[Setting], crowded: bool
    ) -> Iterator[Setting]:
        space = self._space
        yield space.start if space.start in space.members else space.allowed[0]
        yield from self._axis_by_axis(measured, taken)
        expected = dict(zip(space.allowed, self._ranking.expected(measured), strict=True))
        by_model = [setting for setting in sorted(space.allowed, key=lambda s: expected[s]) if setting not in taken]
        turn = len(measured) % 3
        if turn == 1 and measured:
            best = min(measured, key=lambda s: measured[s])
            yield from sorted((s for s in space.around(best) if s not in taken), key=lambda s: expected[s])
        elif turn == 2 and measured:
            yield from self._by_tpe(study, trial, len(measured), crowded)
        yield from by_model

    def _axis_by_axis(self, measured: Mapping[Setting, float], taken: set[Setting]) -> Iterator[Setting]:
        """One round of coordinate descent, the axes with the fewest values first: it finds the best of a space whose
        effects do not depend on each other, and a good place to go on from in any other."""
        space = self._space
        similar = dict(zip(space.allowed, self._ranking.expected({}), strict=True))
        centre = space.start
        for index, values in sorted(enumerate(space.axes.values()), key=lambda axis: len(axis[1])):
            line = [(*centre[:index], value, *centre[index + 1 :]) for value in values]
            line = [setting for setting in line if setting in space.members]
            least = min((similar[setting] for setting in line), default=0.0)
            line = [setting for setting in line if similar[setting] < least + _KNOWN_LOSS or setting == centre]
            yield from (setting for setting in line if setting not in taken)
            best = min((s for s in line if s in measured), key=lambda s: measured[s], default=centre)
            if centre not in measured or measured.get(best, math.inf) < (1 - _NOISE) * measured[centre]:
                centre = best

    def _by_tpe(self, study: Study, trial: FrozenTrial, n_measured: int, crowded: bool) -> Iterator[Setting]:
        """Seeded anew by what was measured, so that a search that was killed goes on as if it had not been."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # of Optuna 4: multivariate, constant_liar
            seed = zlib.crc32(f"{self._seed} {n_measured}".encode())
            sampler = TPESampler(n_startup_trials=1, multivariate=True, constant_liar=crowded, seed=seed)
        space = distributions(self._space)
        for _ in range(_TPE_TRIES):
            setting = setting_of(self._space, sampler.sample_relative(study, trial, space))
            if setting is not None and setting in self._space.members:
                yield setting
