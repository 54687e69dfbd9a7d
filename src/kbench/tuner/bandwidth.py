"""Prices as they would be with a faster main memory."""

from __future__ import annotations

from kbench.core import CPU, Device, Problem, work

from .cost_model import Cost, CostModel
from .visits import Part


class WithBandwidth(CostModel):
    """The prices of ``costs``, of a host whose memory delivers ``extra`` bytes/s more.

    A measured call is at least as long as its bytes take; that part of it shrinks as the bandwidth grows, until
    arithmetic at its peak takes longer.
    """

    def __init__(self, costs: CostModel, extra: float) -> None:
        self.__dict__.update(vars(costs))
        self._slower, self._extra = costs, extra

    def cost(self, problem: Problem, device: Device, threads: int) -> Cost | None:
        return self._faster(self._slower.cost(problem, device, threads), problem, device, threads, 1.0)

    def part(self, problem: Problem, device: Device, threads: int, part: Part) -> Cost | None:
        return self._faster(self._slower.part(problem, device, threads, part), problem, device, threads, part.distinct)

    def adjusted(self, cost: Cost, problem: Problem, device: Device) -> Cost:
        return self._faster(cost, problem, device, cost.threads or self.threads[-1], 1.0) or cost

    def _faster(self, cost: Cost | None, problem: Problem, device: Device, threads: int, share: float) -> Cost | None:
        """``cost`` of a call that reads ``share`` of the bytes of ``problem``."""
        if cost is None or device != CPU:
            return cost
        bandwidth, peak = self.roof.limits(threads)
        if not bandwidth:
            return cost
        size = work(problem)
        reading = share * (size.weight_bytes + size.cache_bytes) / bandwidth
        computing = share * size.flops / peak if peak else 0.0
        saved = min(reading, cost.seconds) - max(reading * bandwidth / (bandwidth + self._extra), computing)
        return cost.scaled(1 - saved / cost.seconds) if saved > 0 else cost
