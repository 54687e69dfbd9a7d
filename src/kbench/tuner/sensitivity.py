"""What a little more of the machine would bring: the problem solved again with a GiB more on one device at a time, and
the placement priced again with another channel of main memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbench.core import CPU, Phase

from .bandwidth import WithBandwidth
from .layout import Layout
from .placement import PlacementProblem, Solution, solve
from .profile import MEMORY_EFFICIENCY
from .vram_curve import phase_seconds

STEP_BYTES = 1 << 30

# Another channel of DDR5-4800, 8 bytes wide, at what reading reaches of it. (How many there are, a virtual machine does
# not tell; what another one adds is the same whatever they are.)
CHANNEL_BYTES_PER_S = MEMORY_EFFICIENCY * 4800e6 * 8

# The answer is a hint: it may be off by this share of the time, and one that takes longer to find is left out.
GAP = 1e-3
_MAX_SECONDS = 2.0


def sensitivity(layout: Layout, problem: PlacementProblem, solution: Solution) -> list[dict[str, Any]]:
    """For each device, tokens/s that ``STEP_BYTES`` more of it would add, under the same objective; and, with the same
    placement, those that ``CHANNEL_BYTES_PER_S`` of the host's bandwidth would, if its cores can take them."""
    now = _rates(layout, solution, problem.first)
    rows = []
    for index, device in enumerate(layout.devices):
        gains = dict.fromkeys(now, 0.0)
        if _is_scarce(problem, solution, index):
            room = problem.capacity[index] + STEP_BYTES
            capacity = (*problem.capacity[:index], room, *problem.capacity[index + 1 :])
            more = solve(replace(problem, capacity=capacity), _MAX_SECONDS, GAP)
            if more is None or more.status != "optimal":
                continue
            best = more if more.seconds < solution.seconds else solution
            gains = {name: rate - now[name] for name, rate in _rates(layout, best, problem.first).items()}
        rows.append({"device": str(device), "extra_bytes": STEP_BYTES, **gains})
    if layout.costs.roof.bandwidth:
        faster = _rates(layout.priced_by(WithBandwidth(layout.costs, CHANNEL_BYTES_PER_S)), solution, problem.first)
        gains = {name: rate - now[name] for name, rate in faster.items()}
        rows.append({"device": str(CPU), "extra_bytes": 0, "extra_bytes_per_s": CHANNEL_BYTES_PER_S, **gains})
    return rows


def _is_scarce(problem: PlacementProblem, solution: Solution, device: int) -> bool:
    """Whether something that could move to ``device`` does not fit there: what fits was free to go."""
    largest = max(column.n_bytes[device] for kind in problem.types for column in kind)
    return solution.used_bytes[device] + largest > problem.capacity[device]


def _rates(layout: Layout, solution: Solution, first: int) -> dict[str, float]:
    seconds = phase_seconds(layout, solution, first)
    plan = layout.plan
    return {
        "decode_tokens_per_s": plan.batch / seconds[Phase.DECODE],
        "prefill_tokens_per_s": plan.workload.prefill_tokens_per_s(seconds[Phase.PREFILL]),
    }
