"""A layer's routed experts: one fused call, or one for each device that has some of them, and the sum of the two.

    router ── ids, weights ──┬── expert_map ── moe_experts, the CPU's ──┐
                             └── moe_experts, the GPU's (masked) ───────┴── add

What a token is routed to elsewhere adds nothing on either side. A GPU's kernels leave it out by themselves; the CPU's
are told what to do instead, by the router's device: so that a graph holds all of it where the router is on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbench.core import Attribute, Placement, Problem, UserError, Value, is_injected

from .draft import Draft


@dataclass(frozen=True, slots=True)
class Routed:
    """What a layer's experts are called with: ``problem`` of all of them, their ``module``, ``x``, the ``router``'s
    module and its two values, tensors and attributes."""

    problem: Problem
    module: str
    router: str
    x: str
    ids: Value
    weights: Value
    tensors: tuple[str, ...]
    attrs: Mapping[str, Attribute]


def lower_experts(draft: Draft, routed: Routed) -> tuple[str, ...]:
    """The calls; names of what they make: one value, or two whose sum it is.

    Raises:
        UserError: a placement that puts experts apart which the layer has not, or that somebody's own operator does.
    """
    placement, width = draft.placement(routed.module), routed.problem.integer("k")
    part = placement.gpu_experts
    if part is None:
        inputs = (routed.x, routed.ids.name, routed.weights.name)
        value = Value(routed.module, width)
        return (draft.emit(routed.problem, routed.module, inputs, (value,), routed.tensors, routed.attrs),)
    n_experts = routed.problem.integer("experts")
    wrong = part.why_not(n_experts)
    if not wrong and is_injected(placement.implementation(draft.phase)):
        wrong = "experts of an operator that is somebody's own"
    if wrong:
        accepted = f"some of 0 to {n_experts - 1}, and not all"
        raise UserError(wrong, where=f"{routed.module}, gpu_experts", accepted=accepted)
    there = Placement(part.device, part.op, part.device, part.op)
    sides = (("here", part.others(n_experts), placement), ("gpu", part.experts, there))
    # Before both: a module's calls stand together.
    routes = [_route(draft, routed, *side) for side in sides]
    made = []
    for (name, experts, where), (route, masked) in zip(sides, routes, strict=True):
        attrs: dict[str, Attribute] = {**routed.attrs, "experts": experts, **({"masked": 1} if masked else {})}
        problem = routed.problem if masked else routed.problem.replace(experts=len(experts))
        value = Value(f"{routed.module}.{name}", width)
        inputs = (routed.x, *route)
        made.append(draft.emit(problem, routed.module, inputs, (value,), routed.tensors, attrs, where))
    return tuple(made)


def _route(
    draft: Draft, routed: Routed, name: str, experts: tuple[int, ...], where: Placement
) -> tuple[tuple[str, str], bool]:
    """Ids and weights for a part of the experts, and whether its call is masked."""
    given = routed.ids, routed.weights
    if where.device(draft.phase).kind != "cpu":
        return (given[0].name, given[1].name), True
    counts = {key: routed.problem.integer(key) for key in ("experts", "top_k", "tokens")}
    problem = Problem.make("expert_map", here=len(experts), **counts)
    ids, weights = (Value(f"{value.name}.{name}", value.width, value.rows, value.dtype) for value in given)
    device, inputs = draft.placement(routed.router).device(draft.phase), (given[0].name, given[1].name)
    # Of the layer's mixture, not of the router: that may be an operator of somebody's own.
    module, there = routed.module.rpartition(".")[0], Placement(device, prefill_device=device)
    draft.emit(problem, module, inputs, (ids, weights), (), {"experts": experts}, there)
    return (ids.name, weights.name), False
