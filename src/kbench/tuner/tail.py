"""What the last prefill step of a prompt takes when it is partly filled, beside a full one.

Half the tokens are not half the time: weights are read whole however few rows they meet. Each call is priced at its own
tokens, from what the full one was measured to take and from how reading and arithmetic share that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kbench.core import CPU, Device, Phase, Problem, work

from .cost_model import PRODUCT_EFFICIENCY, CostModel
from .plan import Plan
from .profile import MEMORY_EFFICIENCY


def with_tail(plan: Plan, costs: CostModel, devices: Sequence[Device]) -> Plan:
    """``plan`` with its workload's ``tail``, each call where it is fastest; as it is where no step is partly filled."""
    tokens = plan.workload.tail_tokens
    if not tokens:
        return plan
    full: list[float] = []
    part: list[float] = []
    for call in plan.calls[Phase.PREFILL]:
        problem, times = plan.priced(call.problem)
        prices = [(_seconds(problem, costs, device), device) for device in devices]
        seconds, device = min((price for price in prices if price[0]), default=(0.0, CPU))
        of_tokens = problem.replace(tokens=min(tokens, problem.integer("tokens")))
        full.append(times * seconds)
        part.append(times * seconds * _ratio(of_tokens, problem, costs, device))
    whole = math.fsum(full)
    share = math.fsum(part) / whole if whole else tokens / plan.workload.chunk
    return replace(plan, workload=replace(plan.workload, tail=share))


def _seconds(problem: Problem, costs: CostModel, device: Device) -> float:
    found = [cost for n in costs.threads if (cost := costs.cost(problem, device, n)) is not None]
    return min((cost.seconds for cost in found), default=0.0)


def _ratio(part: Problem, whole: Problem, costs: CostModel, device: Device) -> float:
    """Of the time of ``whole``, what ``part`` of it takes: as their lower bounds, which do not know of launching."""
    if device in costs.profiles:
        profile = costs.profiles[device]
        return profile.seconds(work(part)) / profile.seconds(work(whole))
    bandwidth, peak = costs.roof.limits(costs.threads[-1])
    if not bandwidth or not peak:
        return part.integer("tokens") / whole.integer("tokens")
    least = [
        max(size.bytes_touched / (MEMORY_EFFICIENCY * bandwidth), size.flops / (PRODUCT_EFFICIENCY * peak))
        for size in (work(part), work(whole))
    ]
    return least[0] / least[1] if least[1] else 1.0
