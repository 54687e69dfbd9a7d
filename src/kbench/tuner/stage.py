"""The model cut into stages that are chained by one value, and each stage's units that move between devices.

A stage is a decoder layer, or what stands before the first and after the last. Between stages only the hidden state is
alive, so the time of a model is the sum over its stages, exactly. Within a stage, a *unit* is what moves as one:

    stream            norms, residual adds, router: where the hidden state lives
    q projections     q_proj, or q_a_proj + q_a_layernorm + q_b_proj
    kv projections    k_proj + v_proj, or kv_a_proj_with_mqa + kv_a_layernorm
    attention         the attention itself with its cache, RoPE, and the absorbed kv_b_proj
    o projection
    dense FFN | shared experts, routed experts
    linear attention  with its projections and state, in layers that have it instead of attention
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kbench.core import OpCall

# What the report calls the unit of a layer's routed experts.
ROUTED = "routed experts"

_LAYER = re.compile(r"^(?P<layer>.*?layers\.\d+)(?:\.(?P<rest>.*))?$")

# First match wins; what matches nothing belongs to the stream.
_UNITS = (
    ("q projections", r"self_attn\.(q_proj|q_a_proj|q_a_layernorm|q_b_proj)$"),
    ("kv projections", r"self_attn\.(k_proj|v_proj|kv_a_proj_with_mqa|kv_a_layernorm)$"),
    ("o projection", r"self_attn\.o_proj$"),
    ("attention", r"self_attn(\.|$)"),
    ("linear attention", r"linear_attn(\.|$)"),
    (ROUTED, r"(mlp|block_sparse_moe)\.experts(\.|$)"),
    ("shared experts", r"mlp\.shared_expert(s|_gate)?(\.|$)"),
    ("router", r"(mlp|block_sparse_moe)\.(gate|router)$"),
    ("dense FFN", r"mlp(\.|$)"),
)
_STREAM = "stream"
_KINDS = {"model.embed_tokens": "embedding", "model.norm": "final norm", "lm_head": "lm_head"}


@dataclass(frozen=True, slots=True)
class Unit:
    """Calls, by their index in each phase's list, that move together. ``kind`` is what the report calls them."""

    kind: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of calls: ``start`` and ``stop`` index the call list, ``unit_of`` has one entry per call.

    ``entry`` is the value that enters from the stage before (None for the first).
    """

    name: str
    start: int
    stop: int
    units: tuple[Unit, ...]
    unit_of: tuple[int, ...]
    entry: str | None


def kind_of(module: str, routed: bool) -> str:
    """The unit that ``module`` belongs to; ``routed`` says that its layer has routed experts."""
    match = _LAYER.match(module)
    if match is None:
        return _KINDS.get(module, module)
    rest = match["rest"] or ""
    kind = next((kind for kind, pattern in _UNITS if re.match(pattern, rest)), _STREAM)
    # In a MoE layer `mlp` itself only adds the two sides, and the router decides for the stream's next step.
    return _STREAM if kind == "router" or (routed and kind == "dense FFN") else kind


def layer_of(module: str) -> str:
    """``model.layers.3`` for every module below it, an empty string outside the layers."""
    match = _LAYER.match(module)
    return match["layer"] if match else ""


def stages(calls: Sequence[OpCall]) -> list[Stage]:
    """Cuts a lowered model (all on one device, so without transfers).

    Raises:
        ValueError: more than one value crosses from a stage to a later one: the chain would not be exact.
    """
    routed = {layer_of(call.module) for call in calls if call.op == "moe_experts"}
    cuts: list[tuple[str, int, int]] = []
    for index, call in enumerate(calls):
        name = layer_of(call.module)
        if cuts and cuts[-1][0] == name:
            cuts[-1] = (name, cuts[-1][1], index + 1)
        else:
            cuts.append((name, index, index + 1))
    result: list[Stage] = []
    stage_of_value: dict[str, int] = {}
    for position, (name, start, stop) in enumerate(cuts):
        own = calls[start:stop]
        entries = _entries(own, stage_of_value)
        if len(entries) > 1 or any(stage_of_value[value] != position - 1 for value in entries):
            raise ValueError(f"{name or own[0].module}: the values {sorted(entries)} enter; one was expected")
        stage_of_value.update({value.name: position for call in own for value in call.outputs})
        modules: dict[str, dict[str, None]] = {}
        for call in own:
            modules.setdefault(kind_of(call.module, name in routed), {})[call.module] = None
        kinds = list(modules)
        units = tuple(Unit(kind, tuple(modules[kind])) for kind in kinds)
        unit_of = tuple(kinds.index(kind_of(call.module, name in routed)) for call in own)
        label = name or " + ".join(kinds)
        result.append(Stage(label, start, stop, units, unit_of, next(iter(entries), None)))
    return result


def _entries(calls: Iterable[OpCall], known: dict[str, int]) -> set[str]:
    made: set[str] = set()
    entries: set[str] = set()
    for call in calls:
        entries |= {name for name in call.inputs if not name.startswith("$") and name not in made and name in known}
        made |= {value.name for value in call.outputs}
    return entries
