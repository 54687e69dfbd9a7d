"""The memory that running a model takes, device by device, and whether it is there: known before a weight is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbench.core import AUTO, CPU, Assignment, Device, OpCall, OverBudget, Phase, Placement, format_bytes
from kbench.kernels import PAGE_TOKENS
from kbench.model import ModelDescriptor, absorbing_is_faster, lower, plan_arena

from .kv_cache import RING, STOP, CacheShape
from .layerwise import LAYERWISE_CHUNK, by_layer
from .load_options import FEW_TOKENS
from .memory import available_bytes, device_bytes
from .placed_caches import Home, attention_devices
from .schedule import COMPUTE, schedule
from .weights import WeightStore

# A context that most prompts fit into and that costs little: 4096 tokens of a 7B model's cache are 2 GiB in f16.
DEFAULT_CONTEXT = 4096

# Left to the rest of the process (interpreter, torch, tokenizer) when memory is checked.
_MARGIN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Program:
    """A list of calls that a session keeps bound, for up to ``tokens`` tokens. ``swaps``: of weights that are not there
    otherwise it has one layer's at a time."""

    phase: Phase
    tokens: int
    swaps: bool = False


def programs(
    descriptor: ModelDescriptor,
    context: int,
    chunk: int,
    threshold: int = 0,
    sequences: int = 1,
    overflow: str = STOP,
) -> list[Program]:
    """Those that a conversation can come to need, later ones too: prefill of a few tokens behind a long past where
    latent attention absorbs them, layer-wise prefill of prompts over ``threshold`` (0: never), and decode of one token
    of each of several ``sequences``."""
    found = [Program(Phase.DECODE, 1), Program(Phase.PREFILL, chunk)]
    if descriptor.mla is not None and absorbing_is_faster(descriptor.mla, 1, context):
        found.append(Program(Phase.PREFILL, min(FEW_TOKENS, chunk)))
    if _prefills_by_layers(threshold, context, overflow):
        found.append(Program(Phase.PREFILL, min(LAYERWISE_CHUNK, context), swaps=True))
    if sequences > 1:
        found.append(Program(Phase.DECODE, sequences))
    return found


def cache_shape(
    context: int, chunk: int, threshold: int = 0, overflow: str = STOP, sequences: int = 1, shared_tokens: int = 0
) -> CacheShape:
    """What a session keeps that steps ``chunk`` tokens, or with layer-wise prefill more."""
    by_layers = _prefills_by_layers(threshold, context, overflow)
    step = max(chunk, min(LAYERWISE_CHUNK, context)) if by_layers else chunk
    return CacheShape(context, step, overflow, sequences, shared_tokens)


def _prefills_by_layers(threshold: int, context: int, overflow: str) -> bool:
    """Whether a prompt can be longer than ``threshold``: in a ring it can be longer than the context, too."""
    return threshold > 0 and (overflow == RING or threshold < context)


def prefilled_as_decoded(assignment: Assignment) -> dict[str, Placement]:
    """What is resident where long prompts are prefilled layer by layer."""
    return {
        name: dataclasses.replace(place, prefill_device=place.generate_device, prefill_op=place.generate_op)
        for name, place in assignment.items()
    }


def attention_homes(calls: Iterable[OpCall]) -> dict[int, tuple[Device, ...]]:
    """Layer -> the devices on which its attention runs."""
    found: dict[int, dict[Device, None]] = {}
    for call in calls:
        for layer, device in attention_devices([call]).items():
            found.setdefault(layer, {})[device] = None
    return {layer: tuple(places) for layer, places in found.items()}


@dataclass(slots=True)
class Need:
    """Bytes on one device; ``cache`` is of one token of context (of every sequence), ``fixed_cache`` besides."""

    weights: int = 0
    swapped: int = 0
    cache: int = 0
    fixed_cache: int = 0
    workspace: int = 0

    def lines(self, context: int) -> dict[str, int]:
        """What each part is, and its bytes."""
        told = {"weights": self.weights, "one layer swapped in": self.swapped}
        told |= {f"cache for {context} tokens": context * self.cache + self.fixed_cache, "workspace": self.workspace}
        return {name: n_bytes for name, n_bytes in told.items() if n_bytes or name != "one layer swapped in"}


def run_needs(
    plans: Sequence[tuple[Program, Sequence[OpCall]]],
    homes: Mapping[int, Sequence[Device]],
    layer_bytes: Callable[[Home], tuple[int, int]],
    memory_of: Callable[[Device], Device | None] = lambda device: device,
) -> dict[Device, Need]:
    """Caches and workspace. ``homes``: the devices of each layer's cache, which takes ``layer_bytes`` there: for
    each token of context, and besides.
    ``memory_of`` tells whose memory a device uses; None: another process's."""
    needs: dict[Device, Need] = {}
    for program, calls in plans:
        for device in {call.device for call in calls}:
            memory = memory_of(device)
            if memory is not None:
                needs.setdefault(memory, Need()).workspace += plan_arena(calls, program.tokens, device).n_bytes
    for layer, places in homes.items():
        for device in places:
            memory = memory_of(device)
            if memory is not None:
                token, besides = layer_bytes((layer, device))
                need = needs.setdefault(memory, Need())
                need.cache, need.fixed_cache = need.cache + token, need.fixed_cache + besides
    return needs


def add_weights(
    needs: Mapping[Device, Need], store: WeightStore, plans: Sequence[tuple[Program, Sequence[OpCall]]]
) -> None:
    """Adds to ``needs`` what packing takes for the calls of ``plans`` that run here."""
    devices = store.devices
    resident = [
        call for program, calls in plans if not program.swaps for call in calls if devices.is_local(call.device)
    ]
    groups = [
        [item.call for item in group]
        for program, calls in plans
        if program.swaps
        for group in by_layer(item for item in schedule(calls, devices) if item.what == COMPUTE)
    ]
    for device, need in needs.items():

        def on(calls: Iterable[OpCall], device: Device = device) -> list[OpCall]:
            return [call for call in calls if devices.physical(call.device) == device]

        need.weights += store.estimate(on(resident))
        need.swapped = max((store.estimate(on(group), besides=resident) for group in groups), default=0)


def check_room(needs: Mapping[Device, Need], context: int) -> None:
    """Raises OverBudget where what a device needs is more than what is free there."""
    for device, need in sorted(needs.items()):
        free = available_bytes() if device == CPU else device_bytes(device)
        fixed = need.weights + need.swapped + need.workspace + need.fixed_cache + _MARGIN_BYTES
        needed = fixed + context * need.cache
        if needed <= free:
            continue
        fits = (free - fixed) // need.cache if need.cache else 0
        if device != CPU:  # whole pages
            fits -= fits % PAGE_TOKENS
        told = ", ".join(f"{name} {format_bytes(n_bytes)}" for name, n_bytes in need.lines(context).items())
        raise OverBudget(
            f"{format_bytes(needed - free)} short: {told}, reserve {format_bytes(_MARGIN_BYTES)}; "
            f"{format_bytes(free)} are free",
            where="memory" if device == CPU else f"memory of {device}",
            accepted=f"a context of at most {fits}" if fits > 0 else "",
            todo=_what_fits(fits, needed - free <= need.fixed_cache and not need.cache),
        )


def _what_fits(context: int, shares_pages: bool) -> str:
    """What to do where memory is short: by what the cache could be."""
    if context > 0:
        return f"use --context {context} or less"
    if shares_pages:
        return "use fewer cache_tokens, or a smaller quantization"
    return "use a smaller quantization, or free memory: without any cache it does not fit either"


def planned_needs(
    descriptor: ModelDescriptor, assignment: Assignment, context: int, kv: str, chunk: int, threshold: int = 0
) -> dict[Device, dict[str, int]]:
    """Caches and workspace by device, for a model of which there may be only the description; what each line is, and
    its bytes. Errors as for ``lower``."""
    resident = prefilled_as_decoded(assignment) if threshold else assignment
    plans = []
    for program in programs(descriptor, context, min(chunk, context), threshold):
        placed = assignment if program.swaps else resident
        calls = lower(
            descriptor, placed, program.phase, program.tokens, context, kv=kv, deliver=CPU, resolve=lambda *_: AUTO
        )
        plans.append((program, calls))
    homes = attention_homes(call for _, calls in plans for call in calls)
    shape = cache_shape(context, min(chunk, context), threshold)
    needs = run_needs(plans, homes, lambda home: shape.layer_bytes(descriptor, home[0], kv, home[1].kind != "cpu"))
    lines = {device: need.lines(context) for device, need in needs.items()}
    return {device: {name: n for name, n in told.items() if name != "weights"} for device, told in lines.items()}
