"""What a model costs in principle: bytes by class, FLOPs and bytes of every kind of call, both intensities."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbench.core import OPS, PLANNED, Module, OpCall, Phase, TensorInfo, Work, kv_bytes, work

from .descriptor import ModelDescriptor
from .lower import lower
from .lower_delta import delta_problem
from .tensor_kind import KINDS
from .tree import build_tree

_LAYER = re.compile(r"^model\.layers\.\d+")


@dataclass(frozen=True, slots=True)
class ClassBytes:
    """All tensors of one class; ``types`` counts tensors by type, most frequent first."""

    kind: str
    n_tensors: int
    n_params: int
    n_bytes: int
    types: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CallGroup:
    """All calls of one op in one kind of module (``layers.*`` for every layer).

    ``problem`` holds the parameters; where the calls differ, the values are joined by ``|``.
    """

    module: str
    op: str
    count: int
    problem: Mapping[str, str]
    work: Work


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """All modules of one kind; ``n_bytes`` are their own tensors'."""

    module: str
    class_name: str
    count: int
    n_bytes: int
    types: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Intensity:
    """A model's characteristic FLOPs per element stored; ``flops_per_byte`` is of bf16 bytes.

    ``nominal`` leaves out the elements that carry positions, as KTransformers counts.
    """

    what: str
    nominal: float
    exact: float
    flops_per_byte: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """``read_bytes_per_token``: weights that one decoded token reads: every tensor once, of the routed experts those
    that it visits, of the embedding one row. ``active_params`` counts the same way, the whole embedding included.
    ``cached_bytes``: of the cache at the longest of ``contexts``.
    """

    descriptor: ModelDescriptor
    classes: tuple[ClassBytes, ...]
    modules: tuple[ModuleGroup, ...]
    phases: Mapping[Phase, tuple[CallGroup, ...]]
    tokens: Mapping[Phase, int]
    contexts: Mapping[Phase, int]
    intensities: tuple[Intensity, ...]
    kv: str
    kv_bytes_per_token: int
    cached_bytes: int
    read_bytes_per_token: int
    active_params: int


def kv_bytes_per_token(descriptor: ModelDescriptor, kv: str = "f16") -> int:
    """Bytes that the cache of all layers grows by with each token, until windows are full."""
    layers = sum(descriptor.attends(layer) for layer in range(descriptor.n_layers))
    return layers * layer_kv_bytes(descriptor, kv)


def cached_bytes(descriptor: ModelDescriptor, context: int, kv: str = "f16") -> int:
    """Bytes that the cache keeps of one sequence of ``context`` tokens: a layer with a window keeps no more than it."""
    token = layer_kv_bytes(descriptor, kv)
    windows = (descriptor.layer_window(n) for n in range(descriptor.n_layers) if descriptor.attends(n))
    return sum(token * min(context, window or context) for window in windows)


def layer_kv_bytes(descriptor: ModelDescriptor, kv: str) -> int:
    """Bytes that the cache of a layer that attends keeps of a token."""
    vectors = 1 if descriptor.mla is not None else 2 * descriptor.kv_heads
    return vectors * kv_bytes(kv, *descriptor.cached_widths)


def layer_state_bytes(descriptor: ModelDescriptor) -> int:
    """Bytes that a layer which does not attend keeps of a sequence, however long that is."""
    return 0 if descriptor.delta is None else int(work(delta_problem(descriptor.delta, 1)).resident_bytes)


def footprint(
    descriptor: ModelDescriptor,
    *,
    prompt_tokens: int = 512,
    context: int = 4096,
    kv: str = "f16",
    phases: Sequence[Phase] = (Phase.PREFILL, Phase.DECODE),
) -> Footprint:
    """Prefill of ``prompt_tokens`` into an empty cache; decode of one token, the last of ``context``.

    Raises:
        UserError: counts below 1, an unknown cache type.
    """
    tokens = {phase: prompt_tokens if phase is Phase.PREFILL else 1 for phase in phases}
    contexts = {phase: prompt_tokens if phase is Phase.PREFILL else context for phase in phases}
    groups = {}
    for phase in phases:
        calls = lower(
            descriptor, {}, phase, tokens[phase], contexts[phase], kv=kv, resolve=lambda problem, device: "reference"
        )
        groups[phase] = group_calls(calls)
    return Footprint(
        descriptor=descriptor,
        classes=tensor_classes(descriptor.tensors),
        modules=_group_modules(build_tree(descriptor)),
        phases=groups,
        tokens=tokens,
        contexts=contexts,
        intensities=_intensities(descriptor),
        kv=kv,
        kv_bytes_per_token=kv_bytes_per_token(descriptor, kv),
        cached_bytes=cached_bytes(descriptor, max(contexts.values()), kv),
        read_bytes_per_token=sum(_read(descriptor, tensor, tensor.n_bytes) for tensor in descriptor.tensors),
        active_params=sum(
            tensor.n_elements if tensor.kind == "embedding" else _read(descriptor, tensor, tensor.n_elements)
            for tensor in descriptor.tensors
        ),
    )


def tensor_classes(tensors: Iterable[TensorInfo]) -> tuple[ClassBytes, ...]:
    """One row a class, the largest first."""
    by_kind: dict[str, list[TensorInfo]] = {kind: [] for kind in KINDS}
    for tensor in tensors:
        by_kind[tensor.kind].append(tensor)
    rows = (
        ClassBytes(
            kind,
            len(members),
            sum(tensor.n_elements for tensor in members),
            sum(tensor.n_bytes for tensor in members),
            dict(Counter(tensor.quant for tensor in members).most_common()),
        )
        for kind, members in by_kind.items()
        if members
    )
    return tuple(sorted(rows, key=lambda row: -row.n_bytes))


def total_work(groups: Iterable[CallGroup]) -> Work:
    """The sum over ``groups``."""
    return _sum([group.work for group in groups])


def group_calls(calls: Iterable[OpCall]) -> tuple[CallGroup, ...]:
    """Calls by kind of module and op, in the order of their first."""
    groups: dict[tuple[str, str], list[OpCall]] = {}
    for call in calls:
        groups.setdefault((_pattern(call.module), call.op), []).append(call)
    return tuple(
        CallGroup(module, op, len(members), _merged(op, members), _sum([work(call.problem) for call in members]))
        for (module, op), members in groups.items()
    )


def _pattern(module: str) -> str:
    return _LAYER.sub("layers.*", module)


def _merged(op: str, calls: Sequence[OpCall]) -> dict[str, str]:
    """Each parameter of the calls' problems; ``|`` joins values that differ."""
    spelled = {name for call in calls for name in call.problem.params}
    names = {**OPS, **PLANNED}[op]
    values = {name: dict.fromkeys(str(call.problem[name]) for call in calls) for name in names if name in spelled}
    return {name: "|".join(found) for name, found in values.items()}


def _sum(works: Sequence[Work]) -> Work:
    return Work(
        sum(item.flops for item in works),
        sum(item.weight_bytes for item in works),
        sum(item.cache_bytes for item in works),
        sum(item.activation_bytes for item in works),
        sum(item.elements_resident for item in works),
        sum(item.resident_bytes for item in works),
    )


def _group_modules(tree: Module) -> tuple[ModuleGroup, ...]:
    groups: dict[tuple[str, str], list[Module]] = {}
    for module in tree.walk():
        groups.setdefault((_pattern(module.name), module.classes[0]), []).append(module)
    return tuple(
        ModuleGroup(
            name or "(root)",
            class_name,
            len(members),
            sum(tensor.n_bytes for module in members for tensor in module.tensors),
            dict(Counter(tensor.quant for module in members for tensor in module.tensors).most_common()),
        )
        for (name, class_name), members in groups.items()
    )


def _read(descriptor: ModelDescriptor, tensor: TensorInfo, amount: int) -> int:
    """How much of ``amount`` (bytes or elements) one decoded token reads."""
    if tensor.kind == "routed experts" and descriptor.moe is not None:
        return amount * descriptor.moe.top_k // descriptor.moe.experts
    if tensor.kind == "embedding" and not descriptor.tied:
        return amount // descriptor.vocab
    return amount


def _intensities(descriptor: ModelDescriptor) -> tuple[Intensity, ...]:
    """Per cached element: 2 products (with keys, with values) x 2 FLOPs x the heads that share it."""
    found = []
    heads, a, e = descriptor.heads, descriptor.mla, descriptor.moe
    if a is not None:
        exact = 2.0 * heads * (2 * a.kv_lora + a.rope) / (a.kv_lora + a.rope)
        found.append(Intensity("FLOPs per cached element, MLA in decode", 4.0 * heads, exact, exact / 2))
    else:
        shared = 2.0 * heads / descriptor.kv_heads
        found.append(Intensity("FLOPs per cached element, attention in decode", shared, shared, shared / 2))
    if e is not None:
        per_stored = 2.0 * e.top_k / e.experts
        # Of the experts that a token visits every weight is read once for its 2 FLOPs.
        found.append(Intensity("FLOPs per stored weight, routed experts in decode", per_stored, per_stored, 1.0))
    return tuple(found)
