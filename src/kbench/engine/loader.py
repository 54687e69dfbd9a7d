"""From a GGUF file to a session: describe, place, lower, check that it fits, pack, bind."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kbench.core import (
    CPU,
    Assignment,
    Device,
    OpCall,
    OverBudget,
    Phase,
    Placement,
    Unsupported,
    UserError,
    allowed_cpus,
    check_kv,
    default_threads,
    format_bytes,
    read_cgroup,
    thread_limit,
)
from kbench.kernels import block_errors
from kbench.model import (
    ARCHITECTURES,
    ModelDescriptor,
    architecture,
    build_tree,
    describe_gguf,
    embedded_names,
    kv_bytes_per_token,
    lower,
    open_gguf,
    plan_arena,
)
from kbench.rules import RuleSet, assign

from .chat_template import ChatTemplate
from .choice import Choice
from .devices import DeviceMap
from .executor import Executable
from .kv_cache import KvCache
from .layerwise import LayerwiseExecutable
from .machine import Machine
from .memory import available_bytes, device_bytes
from .operator_store import OperatorStore
from .pipeline import HostGroup
from .placed_caches import PlacedCaches, attention_devices
from .session import LoadReport, Session
from .tokenizer import Tokenizer
from .weights import Progress, WeightStore

# A context that most prompts fit into and that costs little: 4096 tokens of a 7B model's cache are 2 GiB in f16.
DEFAULT_CONTEXT = 4096

# Tokens of one prefill step. Larger chunks reuse each weight more often, but from about this many on a matrix
# product is bound by arithmetic, and the activations of a step still fit the last-level cache.
DEFAULT_CHUNK = 256

# Of a pool: more than any machine has.
_MAX_THREADS = 1024

# Left to the rest of the process (interpreter, torch, tokenizer) when memory is checked.
_MARGIN_BYTES = 256 << 20


def load_model(
    path: Path | str,
    placements: RuleSet | Mapping[str, Placement] | None = None,
    *,
    default: Placement | None = None,
    context: int | None = None,
    kv: str = "f16",
    threads: int | None = None,
    prefill_threads: int | None = None,
    chunk: int = DEFAULT_CHUNK,
    progress: Progress | None = None,
    weights: WeightStore | None = None,
    trust: Iterable[str] = (),
    alias: Mapping[Device, Device] | None = None,
    group: HostGroup | None = None,
) -> Session:
    """Loads a GGUF file for running.

    Args:
        placements: rules, or a finished assignment; modules that it does not name run as ``default`` says.
        default: placement of everything else: by default the CPU with the best implementation there, or what the
            dialect of the rules says.
        context: tokens that the cache holds; by default what the model was trained for, up to 4096.
        kv: type of the cache: ``f16``, ``bf16``, ``q8_0`` or ``f32``.
        threads: threads of native code; by default one per physical core, at most the control group's quota. Modules
            that a placement gives another count use that one: at most ``threads`` or ``prefill_threads`` where either
            is given, else at most one per logical processor, within the quota.
        prefill_threads: threads of prefill; by default ``threads``.
        chunk: the most tokens that one prefill step takes.
        progress: told (bytes packed, bytes to pack) after each tensor.
        weights: those of another session with the same file: what they have packed is shared, not packed again.
        alias: devices that stand for others: ``{Device("cuda"): CPU}`` rehearses rules for a GPU without one
            (``parse_alias`` reads ``cuda:0=cpu``).
        group: the processes that the model is spread over, of which this is host 0; the others call ``serve_host``.
        trust: packages whose operators the placements may name, besides those installed as such.

    Raises:
        CorruptFile, Unsupported, UserError: the file, the rules or an argument; named.
        InvalidEnvironment: a device or an implementation that this machine has not.
        OverBudget: weights, cache and workspace exceed the memory that is free; by how much, and the largest context
            that fits. Nothing was loaded.
    """
    session = _load(
        path,
        placements,
        default=default,
        context=context,
        kv=kv,
        threads=threads,
        prefill_threads=prefill_threads,
        chunk=chunk,
        progress=progress,
        weights=weights,
        trust=trust,
        alias=alias,
        group=group,
    )
    assert session is not None  # this is host 0
    return session


def serve_host(
    path: Path | str, placements: RuleSet | Mapping[str, Placement] | None, group: HostGroup, **options: Any
) -> None:
    """Runs this host's part of a model until host 0, which called ``load_model`` with the same arguments, closes
    ``group``. Errors as for ``load_model``; UserError where host 0 has another model, other rules or options."""
    _load(path, placements, group=group, **options)


def _load(
    path: Path | str,
    placements: RuleSet | Mapping[str, Placement] | None = None,
    *,
    default: Placement | None = None,
    context: int | None = None,
    kv: str = "f16",
    threads: int | None = None,
    prefill_threads: int | None = None,
    chunk: int = DEFAULT_CHUNK,
    progress: Progress | None = None,
    weights: WeightStore | None = None,
    trust: Iterable[str] = (),
    alias: Mapping[Device, Device] | None = None,
    group: HostGroup | None = None,
) -> Session | None:
    check_kv(kv, where="kv")
    if not Path(path).exists() and str(path).lower() in embedded_names():
        raise UserError(
            "this model is known by description only; running needs its weights",
            where=str(path),
            accepted="a .gguf file",
            todo=f"plan it with: kbench tune {path}",
        )
    gguf = open_gguf(path) if weights is None else weights.gguf
    descriptor = describe_gguf(gguf)
    if not architecture(descriptor.architecture).generates:
        raise Unsupported(
            f"architecture {descriptor.architecture!r} can be planned but not run yet",
            where=str(path),
            accepted=", ".join(name for name, entry in ARCHITECTURES.items() if entry.generates),
        )
    context = _context(context, descriptor)
    chunk = _positive("chunk", chunk, context)
    counts, most_threads = _thread_counts(threads, prefill_threads)
    tokenizer = Tokenizer(gguf.metadata)
    if tokenizer.n_vocab > descriptor.vocab:
        raise UserError(
            f"{tokenizer.n_vocab} tokens for {descriptor.vocab} embedding rows", where=f"{path}: tokenizer.ggml.tokens"
        )
    texts = {
        name: tokenizer.token_text(i) if i is not None else ""
        for name, i in (("bos", tokenizer.bos_id), ("eos", tokenizer.eos_id))
    }
    template = ChatTemplate.from_metadata(gguf.metadata, **texts)
    tree = build_tree(descriptor)
    if placements is None or isinstance(placements, Mapping):
        given, rest = placements or {}, default or Placement()
        assignment = {module.name: given.get(module.name, rest) for module in tree.walk()}
        _check_blocks(assignment)
    else:
        assignment = assign(placements, tree, default, check_block=block_errors)
        trust = (*trust, *placements.trust)

    def lowered(phase: Phase, tokens: int, logits: str, assignment: Assignment = assignment) -> list[OpCall]:
        calls = lower(
            descriptor, assignment, phase, tokens, context, kv=kv, logits=logits, deliver=CPU, resolve=choice.best
        )  # fmt: skip
        return [_with_threads(choice.runnable(call), counts[phase], most_threads) for call in calls]

    threshold = placements.prefill_threshold if isinstance(placements, RuleSet) else 0
    if threshold and group is not None:
        raise Unsupported("layer-wise prefill over several hosts", todo="set per_layer_prefill_intput_threshold to 0")
    # Long prompts run where rules have them prefilled, layer by layer; what is resident runs as decode does.
    resident = _prefilled_as_decoded(assignment) if threshold else assignment

    devices = DeviceMap(alias or {}) if group is None else DeviceMap(alias or {}, group.host, group.n_hosts)
    choice = Choice(devices)
    plans = [lowered(Phase.DECODE, 1, "last"), lowered(Phase.PREFILL, chunk, "last", resident)]
    store = WeightStore(gguf, devices) if weights is None else weights
    if store.devices != devices:
        raise UserError("weights that were packed for other devices", where="weights", accepted="the same alias")
    operators = OperatorStore(
        descriptor,
        tree,
        assignment,
        store,
        lambda placed, phase, logits: lowered(phase, 1, logits, placed),
        trust=trust,
        threads=counts[Phase.DECODE],
    )
    every_call = [call for plan in plans for call in plan if devices.is_local(call.device)]
    here = Device("cpu", 0, devices.host)
    homes = _homes([*every_call, *lowered(Phase.PREFILL, chunk, "last")])
    if devices.n_hosts == 1:  # somebody's own attention keeps what it keeps in host memory
        homes = {layer: homes.get(layer, (here,)) for layer in range(descriptor.n_layers)}
    workspace = {device: _workspace(plans, (1, chunk), device) for device in {call.device for call in every_call}}
    _check_memory(
        store, every_call, homes, workspace, kv_bytes_per_token(descriptor, kv) // descriptor.n_layers, context
    )

    started = time.perf_counter()
    file_bytes = store.prepare(every_call, progress)
    operators.load()
    seconds = time.perf_counter() - started
    everywhere = len(homes) == descriptor.n_layers and all(places == (here,) for places in homes.values())
    cache = KvCache(descriptor, context, kv) if everywhere else PlacedCaches(descriptor, context, kv, homes, devices)
    machine = Machine(devices, max((call.threads or 1 for call in every_call), default=1), group)

    def build(phase: Phase, tokens: int, logits: str, keep_all: bool) -> Executable:
        calls = lowered(phase, tokens, logits, resident)
        store.prepare(call for call in calls if devices.is_local(call.device))
        leads = group is not None and not group.host
        announce = group.announce(phase, tokens, logits, keep_all, calls) if group is not None and leads else None
        bind = operators.bind(phase)
        return Executable(calls, tokens, store, cache, machine, keep_all=keep_all, bind=bind, announce=announce)

    def build_layerwise(tokens: int) -> Executable:
        calls = lowered(Phase.PREFILL, tokens, "last")
        return LayerwiseExecutable(calls, tokens, store, cache, machine, bind=operators.bind(Phase.PREFILL))

    if group is not None and group.host:
        group.serve(build, cache)
        return None

    report = LoadReport(file_bytes, store.n_bytes, cache.n_bytes, sum(workspace.values()), seconds, choice.stand_ins)
    return Session(
        descriptor,
        tokenizer,
        template,
        cache,
        build,
        store,
        chunk=chunk,
        threads=counts,
        report=report,
        operators=operators.by_module,
        traffic=machine.traffic,
        layerwise=(threshold, build_layerwise) if threshold else None,
    )


def _with_threads(call: OpCall, count: int, most: int) -> OpCall:
    """``call`` with the threads that it runs on: its placement's, at most ``most``, or the phase's ``count``."""
    return dataclasses.replace(call, threads=min(call.threads or count, most))


def _thread_counts(threads: int | None, prefill_threads: int | None) -> tuple[dict[Phase, int], int]:
    """Threads by phase, and the most that a placement may ask for."""
    given = {"threads": threads, "prefill_threads": prefill_threads}
    asked = [_positive(name, n, _MAX_THREADS) for name, n in given.items() if n is not None]
    decode = default_threads() if threads is None else threads
    counts = {Phase.DECODE: decode, Phase.PREFILL: decode if prefill_threads is None else prefill_threads}
    most = thread_limit(len(allowed_cpus()), read_cgroup(Path("/")).cpu_quota)
    return counts, max(*counts.values(), *([] if asked else [most]))


def _prefilled_as_decoded(assignment: Assignment) -> dict[str, Placement]:
    return {
        name: dataclasses.replace(place, prefill_device=place.generate_device, prefill_op=place.generate_op)
        for name, place in assignment.items()
    }


def _check_blocks(assignment: Mapping[str, Placement]) -> None:
    for module, placement in assignment.items():
        used = [(placement.implementation(phase), placement.device(phase)) for phase in Phase]
        for error in block_errors(placement.block, used, module).values():
            raise error


def _context(asked: int | None, descriptor: ModelDescriptor) -> int:
    if asked is None:
        return min(DEFAULT_CONTEXT, descriptor.context_length or DEFAULT_CONTEXT)
    # More than the model was trained for runs, badly: that is the user's choice, absurd numbers are not.
    return _positive("context", asked, 1 << 24)


def _positive(name: str, value: int, most: int) -> int:
    if name == "chunk":
        return max(1, min(value, most))
    if not 1 <= value <= most:
        raise UserError(f"{value}", where=name, accepted=f"1..{most}")
    return value


def _homes(calls: Iterable[OpCall]) -> dict[int, tuple[Device, ...]]:
    """Layer -> the devices on which its attention runs."""
    found: dict[int, dict[Device, None]] = {}
    for call in calls:
        for layer, device in attention_devices([call]).items():
            found.setdefault(layer, {})[device] = None
    return {layer: tuple(places) for layer, places in found.items()}


def _workspace(plans: Sequence[Sequence[OpCall]], tokens: Sequence[int], device: Device) -> int:
    return sum(plan_arena(plan, most, device).n_bytes for plan, most in zip(plans, tokens, strict=True))


def _check_memory(
    store: WeightStore,
    calls: Sequence[OpCall],
    homes: Mapping[int, Sequence[Device]],
    workspace: Mapping[Device, int],
    layer_bytes: int,
    context: int,
) -> None:
    """Raises OverBudget where what is placed on a device does not fit into what is free there; ``layer_bytes`` is what
    the cache takes for each token and layer. Aliases of a device share its memory."""
    physical = store.devices.physical
    for device in sorted({physical(call.device) for call in calls}):
        layers = sum(physical(place) == device for places in homes.values() for place in places)
        _check_device_memory(
            device,
            store.estimate(call for call in calls if physical(call.device) == device),
            layers * layer_bytes,
            sum(n_bytes for place, n_bytes in workspace.items() if physical(place) == device),
            context,
        )


def _check_device_memory(
    device: Device, weight_bytes: int, token_bytes: int, workspace_bytes: int, context: int
) -> None:
    """``token_bytes``: what the cache takes for each token."""
    free = available_bytes() if device == CPU else device_bytes(device)
    fixed = weight_bytes + workspace_bytes + _MARGIN_BYTES
    needed = fixed + context * token_bytes
    if needed <= free:
        return
    fits = (free - fixed) // token_bytes if token_bytes else 0
    raise OverBudget(
        f"{format_bytes(needed - free)} short: weights {format_bytes(weight_bytes)}, cache for {context} tokens "
        f"{format_bytes(context * token_bytes)}, workspace {format_bytes(workspace_bytes)}, reserve "
        f"{format_bytes(_MARGIN_BYTES)}; {format_bytes(free)} are free",
        where="memory" if device == CPU else f"memory of {device}",
        accepted=f"a context of at most {fits}" if fits > 0 else "",
        todo=f"use --context {fits} or less"
        if fits > 0
        else "use a smaller quantization, or free memory: without any cache it does not fit either",
    )
