"""Prices of the minutes in which a model runs, in place of those that it was placed by."""

from __future__ import annotations

from collections.abc import Iterable

from kbench.core import CPU, Device, Problem
from kbench.results import Record

from .cost_model import Cost, CostModel, Roof
from .proxy import proxy


class RenewedCosts(CostModel):
    """The prices of ``costs``, but for what ``records`` have measured since."""

    def __init__(self, costs: CostModel, records: Iterable[Record], roof: Roof) -> None:
        renewed = list(records)
        known = {(record.core_problem(), record.threads) for record in renewed}
        others = [record for record in costs.records if (record.core_problem(), record.threads) not in known]
        super().__init__(
            [*others, *renewed],
            threads=costs.threads,
            profiles=costs.profiles,
            roof=roof,
            assumes=costs.assumes,
            availability=costs.availability,
        )
        self._before = costs
        self._renewed: dict[Problem, list[int]] = {}
        for record in renewed:
            if record.threads:
                self._renewed.setdefault(record.core_problem(), []).append(record.threads)

    def adjusted(self, cost: Cost, problem: Problem, device: Device) -> Cost:
        """What a search chose has become slower or faster by as much as the same problem with the defaults has."""
        counts = self._renewed.get(problem) or self._renewed.get(proxy(problem)[0], [])
        for n in counts if device == CPU else []:
            before, now = self._before.cost(problem, CPU, n), self.cost(problem, CPU, n)
            if before is not None and now is not None and before.seconds > 0:
                return cost.scaled(now.seconds / before.seconds)
        return cost
