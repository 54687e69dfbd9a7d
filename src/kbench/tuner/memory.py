"""What memory a placement takes on each device, line by line, and what the host sets aside besides the model.

weights      as packed on the host, as in the file on a GPU
cache        of ``--context`` tokens for each sequence, where attention runs: on a GPU in whole pages
workspace    activations of both phases, and of prefill layer by layer, each in an arena of its own
runtime      interpreter and torch on the host, context and libraries on a GPU
pinned       page-locked buffers that copies to and from GPUs go through, on the host
swapped      the largest layer's experts, where prefill brings them to a GPU
loading      the largest tensor of the file, in the page cache while it is packed, on the host
margin       left free on a GPU for everybody else
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbench.core import CPU, Device, OpCall, Phase
from kbench.model import plan_arena

from .budget import Budget
from .layout import Layout, workspace_bytes
from .placement import PlacementProblem, Solution, evaluate
from .plan import Plan
from .price import PhasePrice
from .streaming import Layerwise

_ELEMENT_BYTES = 4
# Each way, one buffer is filled while the other is copied.
_BUFFERS = 2 * 2


@dataclass(frozen=True, slots=True)
class SetAside:
    """Bytes of the host beside weights, cache and workspace."""

    pinned: int
    loading: int

    @property
    def total(self) -> int:
        return self.pinned + self.loading


def set_aside(plan: Plan, n_gpus: int, layerwise: Layerwise | None = None) -> SetAside:
    """For a model that is loaded onto the host and ``n_gpus`` GPUs."""
    rows = max(*(tokens for tokens, _ in plan.shapes.values()), layerwise.most_tokens if layerwise else 0)
    largest = max((tensor.n_bytes for tensor in plan.descriptor.tensors), default=0)
    return SetAside(n_gpus * _BUFFERS * rows * plan.descriptor.d * _ELEMENT_BYTES, largest)


def workspace(
    plan: Plan, calls: Mapping[Phase, Sequence[OpCall]], layerwise: Layerwise | None, device: Device | None
) -> int:
    """Activations of every program of ``plan``, whose steps are ``calls``; with ``device``, those made there."""
    tokens = {phase: shape[0] for phase, shape in plan.shapes.items()}
    more = plan_arena(calls[Phase.PREFILL], layerwise.most_tokens, device).n_bytes if layerwise else 0
    return workspace_bytes(calls, tokens, device) + more


def memory(
    layout: Layout,
    problem: PlacementProblem,
    solution: Solution,
    prices: Mapping[Phase, PhasePrice],
    available: Sequence[Budget],
) -> dict[str, dict[str, int]]:
    """Bytes by device and line; ``total_bytes`` sums all lines but the margin."""
    plan = layout.plan
    calls = {phase: [call for call, _ in prices[phase].calls] for phase in Phase}
    _, used = evaluate(problem, solution.columns)
    running = {call.device for phase in Phase for call in calls[phase]}
    aside = set_aside(plan, len(running - {CPU}), layout.layerwise)
    swapped = layout.swapped_to(solution)
    result = {}
    for budget in available:
        kv = total = 0
        if budget.device in layout.devices:
            index = layout.devices.index(budget.device)
            total = used[index]
            for stage, column in zip(layout.stages, solution.columns, strict=True):
                on = [u for u, d in enumerate(column.devices) if d == index]
                kv += sum(layout.sizes(stage, unit, budget.device).kv for unit in on)
        runs, host = budget.device in running, budget.device == CPU
        lines = {
            "weights_bytes": total - kv,
            "kv_bytes": kv,
            "workspace_bytes": workspace(plan, calls, layout.layerwise, budget.device) if runs else 0,
            "runtime_bytes": budget.runtime_bytes if runs else 0,
            "swapped_bytes": layout.swapped_bytes(budget.device) if budget.device in swapped else 0,
            "pinned_bytes": aside.pinned if host else 0,
            "loading_bytes": aside.loading if host else 0,
        }
        result[str(budget.device)] = {
            **lines,
            "total_bytes": sum(lines.values()),
            "margin_bytes": budget.margin_bytes if runs else 0,
            "budget_bytes": budget.total_bytes,
        }
    return result
