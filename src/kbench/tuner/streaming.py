"""Prefill with a layer's routed experts brought to a GPU, instead of multiplied on the CPU: from when on it pays.

A step brings the experts of one layer in, uses them on all of its tokens, and drops them::

    cpu   [ experts ][ experts ][ experts ] ...     a chunk after the other: as often as there are chunks
    gpu   [ prepare ][ link ][ experts ]            once for a step of thousands of tokens

Rules ask for it with a threshold (``per_layer_prefill_intput_threshold``): longer prompts run that way. Everything here
is modelled: links and GPUs from profiles; preparing (from the file's form to the kernels', which the engine does anew
for every step) as long as packing the same bytes for the CPU was measured to take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kbench.core import CPU, Device, Phase, Problem, work

from .cost_model import MODELLED, Cost, CostModel
from .layout import Layout, experts_calls
from .profile import GpuProfile

# Tokens of a step at most, as the engine takes them (``engine.layerwise.LAYERWISE_CHUNK``).
STEP_TOKENS = 4096

# Nobody prefills more at once.
_MOST_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class Streaming:
    """The routed experts of a layer, brought to ``device`` for each prefill step.

    Attributes:
        layer_bytes: of all experts of the largest layer, as in the file.
        prepare_seconds, link_seconds: of bringing them; None: nothing tells how long preparing takes.
        ready_tokens: tokens of a step from which it is faster than the CPU if they lie ready to be copied, as other
            engines keep them; None: never.
        tokens: the same if they are prepared for every step; None: never, or not known.
        obstacle: why the engine cannot do it; empty: it can.
    """

    device: Device
    label: str
    layer_bytes: int
    prepare_seconds: float | None
    link_seconds: float
    ready_tokens: int | None
    tokens: int | None
    obstacle: str

    def fields(self, threshold: int) -> dict[str, object]:
        """For the JSON object. ``threshold``: of the rules; 0: they do not ask for it."""
        return {
            "device": str(self.device),
            "label": self.label,
            "layer_bytes": self.layer_bytes,
            "prepare_seconds": self.prepare_seconds,
            "link_seconds": self.link_seconds,
            "ready_tokens": self.ready_tokens,
            "break_even_tokens": self.tokens,
            "obstacle": self.obstacle,
            "threshold": threshold,
            "source": MODELLED,
        }


def streamings(layout: Layout, profiles: Mapping[Device, GpuProfile]) -> list[Streaming]:
    """For each GPU of ``profiles``; nothing for a model without routed experts."""
    calls = experts_calls(layout.plan.calls[Phase.PREFILL])
    if not calls:
        return []
    layers = Counter(call.problem for call in calls)
    on_cpu = {layout.plan.shapes[phase][0]: _on_cpu(layout, phase) for phase in Phase}
    largest = max(layers, key=lambda problem: work(problem).resident_bytes)
    size = int(work(largest).resident_bytes)
    each = {problem: _prepare_seconds(layout.costs, problem) for problem in layers}
    known = [n * seconds for problem, n in layers.items() if (seconds := each[problem]) is not None]
    prepare = math.fsum(known) if len(known) == len(layers) else None
    found = []
    for device, profile in profiles.items():
        ready = _break_even(layers, on_cpu, profile, 0.0, _MOST_TOKENS)
        tokens = None if prepare is None else _break_even(layers, on_cpu, profile, prepare, STEP_TOKENS)
        found.append(
            Streaming(
                device=device,
                label=profile.label,
                layer_bytes=size,
                prepare_seconds=each[largest],
                link_seconds=profile.transfer_seconds(size),
                ready_tokens=ready,
                tokens=tokens,
                obstacle=layout.costs.availability.why_not("moe_experts", device),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Layerwise:
    """Long prompts with routed experts of the host brought to a GPU, layer by layer.

    Attributes:
        step_tokens: of the workload's prompt, tokens of a step on average.
        most_tokens: tokens of the largest step that the context allows: what there must be room for.
        threshold: longer prompts run this way.
    """

    step_tokens: float
    most_tokens: int
    threshold: int

    def cost(self, costs: CostModel, problem: Problem, device: Device, threads: int) -> Cost | None:
        """What ``problem``, the experts of a chunk, takes on ``device``: its share of a step. None where that cannot be
        done, or is not known."""
        once = _prepare_seconds(costs, problem)
        there = costs.cost(problem.replace(tokens=round(self.step_tokens)), device, threads)
        if once is None or there is None or device == CPU:
            return None
        once += costs.transfer(work(problem).resident_bytes, CPU, device).seconds
        # As wrong as the profile may be: nothing better is known of preparing.
        whole = replace(there, low=there.low + 0.75 * once, high=there.high + 1.25 * once, seconds=there.seconds + once)
        return whole.scaled(problem.integer("tokens") / self.step_tokens)


def layerwise(layout: Layout, found: Sequence[Streaming]) -> Layerwise | None:
    """How the workload's prompt would be prefilled layer by layer; None where that cannot be done or brings nothing."""
    plan = layout.plan
    prompt = plan.workload.prompt_tokens
    able = [item.tokens for item in found if not item.obstacle and item.tokens and item.device in layout.devices]
    step = prompt / math.ceil(prompt / STEP_TOKENS)
    if not able or step < min(able):
        return None
    return Layerwise(step, min(STEP_TOKENS, plan.context), max(1, min(able) - 1))


def _on_cpu(layout: Layout, phase: Phase) -> float:
    """Seconds of all routed experts in a step of ``phase``."""
    costs = [layout.cost(call, CPU) for call in experts_calls(layout.plan.calls[phase])]
    return math.fsum(cost.seconds for cost in costs if cost is not None)


def _prepare_seconds(costs: CostModel, problem: Problem) -> float | None:
    """Of one layer's routed experts."""
    cost = costs.cost(problem, CPU, costs.threads[-1])
    return costs.packed.roughly(problem, cost.implementation if cost is not None else "")


def _brought(profile: GpuProfile, problem: Problem, tokens: int) -> float:
    """One layer's experts: carried over, then multiplied. (The engine does one after the other.)"""
    size = work(problem.replace(tokens=tokens))
    return profile.transfer_seconds(size.resident_bytes) + profile.seconds(size)


def _break_even(
    layers: Mapping[Problem, int], on_cpu: Mapping[int, float], profile: GpuProfile, besides: float, most: int
) -> int | None:
    """The fewest tokens of a step, up to ``most``, for which bringing all experts, and ``besides`` for that, takes no
    longer than the CPU; to two digits: nobody knows more."""

    def pays(tokens: int) -> bool:
        brought = math.fsum(n * _brought(profile, problem, tokens) for problem, n in layers.items())
        return besides + brought <= _interpolated(on_cpu, tokens)

    high = 1
    while not pays(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > max(1, high // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def _interpolated(seconds: Mapping[int, float], tokens: int) -> float:
    """Between two counts the time grows evenly; beyond the last with the tokens: a chunk after the other."""
    counts = sorted(seconds)
    above = next((n for n in counts if n >= tokens), None)
    below = max((n for n in counts if n <= tokens), default=None)
    if above is None:
        return seconds[counts[-1]] * tokens / counts[-1]
    if below is None or above == below:
        return seconds[above]
    share = (tokens - below) / (above - below)
    return (1 - share) * seconds[below] + share * seconds[above]
