"""From a GGUF file to a session: describe, place, lower, check that it fits, pack, bind."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kbench.core import (
    CPU,
    Assignment,
    Device,
    OpCall,
    Phase,
    Placement,
    Unsupported,
    UserError,
    allowed_cpus,
    check_kv,
    default_threads,
    read_cgroup,
    thread_limit,
)
from kbench.kernels import Spans, TokenDraw, block_errors
from kbench.model import (
    ARCHITECTURES,
    ModelDescriptor,
    architecture,
    build_tree,
    describe_gguf,
    embedded_names,
    lower,
    open_gguf,
)
from kbench.rules import RuleSet, assign

from .chat_template import ChatTemplate
from .choice import Choice
from .devices import DeviceMap
from .drawing import token_draw
from .executor import Executable
from .fusion import as_laid_out
from .kept import NOTHING
from .kv_cache import OVERFLOWS, RING, KvCache
from .layerwise import LayerwiseExecutable
from .load_options import LoadOptions
from .load_report import LoadReport
from .machine import Machine
from .operator_store import OperatorStore
from .pipeline import HostGroup
from .placed_caches import PlacedCaches, paged_homes
from .planned import ONE_TOKEN, PlannedExecutable, why_not_planned
from .room import (
    DEFAULT_CONTEXT,
    add_weights,
    attention_homes,
    cache_shape,
    check_room,
    prefilled_as_decoded,
    programs,
    run_needs,
)
from .session import Session
from .space import TokenArray
from .tokenizer import Tokenizer
from .weights import WeightStore

# Of a pool: more than any machine has.
_MAX_THREADS = 1024

# Each has a cache and a row in every step's values.
_MAX_SEQUENCES = 1024


def load_model(
    path: Path | str,
    placements: RuleSet | Mapping[str, Placement] | None = None,
    options: LoadOptions | None = None,
    *,
    group: HostGroup | None = None,
    **changes: Any,
) -> Session:
    """Loads a GGUF file for running.

    Args:
        placements: rules, or a finished assignment; modules that it does not name run as ``options.default`` says.
        options: how; each can also be given by its name: ``load_model(path, context=512, threads=4)``.
        group: the processes that the model is spread over, of which this is host 0; the others call ``serve_host``.

    Raises:
        CorruptFile, Unsupported, UserError: the file, the rules or an option; named.
        InvalidEnvironment: a device or an implementation that this machine has not.
        OverBudget: weights, cache and workspace exceed the memory that is free; by how much, and the largest context
            that fits. Nothing was loaded.
    """
    session = _load(path, placements, _changed(options, changes), group)
    assert session is not None  # this is host 0
    return session


def serve_host(
    path: Path | str,
    placements: RuleSet | Mapping[str, Placement] | None,
    group: HostGroup,
    options: LoadOptions | None = None,
    **changes: Any,
) -> None:
    """Runs this host's part of a model until host 0, which called ``load_model`` with the same arguments, closes
    ``group``. Errors as for ``load_model``; UserError where host 0 has another model, other rules or options."""
    _load(path, placements, _changed(options, changes), group)


def _changed(options: LoadOptions | None, changes: Mapping[str, Any]) -> LoadOptions:
    return dataclasses.replace(options or LoadOptions(), **changes)


def _load(
    path: Path | str,
    placements: RuleSet | Mapping[str, Placement] | None,
    options: LoadOptions,
    group: HostGroup | None,
) -> Session | None:
    kv, weights = options.kv, options.weights
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
    context = _context(options.context, descriptor)
    if options.overflow not in OVERFLOWS:
        raise UserError(f"{options.overflow!r}", where="overflow", accepted=", ".join(OVERFLOWS))
    sequences = _positive("sequences", options.sequences, _MAX_SEQUENCES)
    if options.cache_tokens is not None:
        _positive("cache_tokens", options.cache_tokens, 1 << 24)
        if group is not None:
            raise Unsupported("fewer pages than sequences may come to need, over several hosts", where="cache_tokens")
    chunk = max(1, min(options.chunk, context))
    counts, most_threads = _thread_counts(options.threads, options.prefill_threads)
    tokenizer = Tokenizer(gguf.metadata)
    texts = {
        name: tokenizer.token_text(i) if i is not None else ""
        for name, i in (("bos", tokenizer.bos_id), ("eos", tokenizer.eos_id))
    }
    template = ChatTemplate.from_metadata(gguf.metadata, **texts)
    tree = build_tree(descriptor)
    if placements is None or isinstance(placements, Mapping):
        given, rest = placements or {}, options.default or Placement()
        assignment = {module.name: given.get(module.name, rest) for module in tree.walk()}
        _check_blocks(assignment)
    else:
        assignment = assign(placements, tree, options.default, check_block=block_errors)
    trust = (*options.trust, *(placements.trust if isinstance(placements, RuleSet) else ()))

    def lowered(
        phase: Phase, tokens: int, logits: str, assignment: Assignment = assignment, deliver: Device | None = CPU
    ) -> list[OpCall]:
        calls = lower(
            descriptor, assignment, phase, tokens, context, kv=kv, logits=logits, deliver=deliver,
            ring=options.overflow == RING, defer_experts=options.defer_experts and phase is Phase.DECODE,
            resolve=choice.best,
        )  # fmt: skip
        return [_with_threads(choice.runnable(call), counts[phase], most_threads) for call in calls]

    threshold = placements.prefill_threshold if isinstance(placements, RuleSet) else 0
    if threshold and group is not None:
        raise Unsupported("layer-wise prefill over several hosts", todo="set per_layer_prefill_intput_threshold to 0")
    # Long prompts run where rules have them prefilled, layer by layer; what is resident runs as decode does.
    resident = prefilled_as_decoded(assignment) if threshold else assignment

    alias = options.alias or {}
    devices = DeviceMap(alias) if group is None else DeviceMap(alias, group.host, group.n_hosts)
    choice = Choice(devices)
    plans = [
        (program, lowered(program.phase, program.tokens, "last", assignment if program.swaps else resident))
        for program in programs(descriptor, context, chunk, threshold, sequences, options.overflow)
    ]
    carriers = {} if group is None else group.connect([call for _, calls in plans for call in calls], devices)
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
    here = Device("cpu", 0, devices.host)
    homes = attention_homes(call for _, calls in plans for call in calls if devices.is_local(call.device))
    paged = paged_homes((call for _, calls in plans for call in calls), devices)
    if devices.n_hosts == 1:  # somebody's own attention keeps what it keeps in host memory
        homes = {layer: homes.get(layer, (here,)) for layer in range(descriptor.n_layers)}

    def memory_of(device: Device) -> Device | None:
        return devices.physical(device) if devices.is_local(device) else None

    laid = [(program, as_laid_out(calls, devices)) for program, calls in plans]
    shape = cache_shape(context, chunk, threshold, options.overflow, sequences, options.cache_tokens or 0)
    needs = run_needs(laid, homes, lambda home: shape.layer_bytes(descriptor, home[0], kv, home in paged), memory_of)
    add_weights(needs, store, plans)
    check_room(needs, context)

    # Of decode and prefill; other programs are made when they are wanted, mostly of weights that are there then.
    at_once = [call for _, calls in plans[:2] for call in calls if devices.is_local(call.device)]
    started = time.perf_counter()
    file_bytes = store.prepare(at_once, options.progress)
    operators.load()
    seconds = time.perf_counter() - started
    everywhere = len(homes) == descriptor.n_layers and all(places == (here,) for places in homes.values())
    cache = KvCache(descriptor, shape, kv) if everywhere else PlacedCaches(descriptor, shape, kv, homes, devices, paged)
    machine = Machine(devices, max((call.threads or 1 for call in at_once), default=1), group)

    def build(phase: Phase, tokens: int, logits: str, keep: str) -> Executable:
        calls = lowered(phase, tokens, logits, resident)
        leads = group is not None and not group.host
        announce = group.announce(phase, tokens, logits, keep, calls) if group is not None and leads else None
        return bound(calls, phase, tokens, keep, announce)

    def bound(
        calls: list[OpCall],
        phase: Phase,
        tokens: int,
        keep: str,
        announce: Callable[[TokenArray, Spans], None] | None = None,
        draw: TokenDraw | None = None,
    ) -> Executable:
        store.prepare(call for call in calls if devices.is_local(call.device))
        bind = operators.bind(phase)
        alone = options.graph and (phase, tokens, keep) == (Phase.DECODE, ONE_TOKEN, NOTHING)
        why_not = why_not_planned(calls, machine, sequences) if alone else ""
        if alone and not why_not:
            return PlannedExecutable(calls, store, cache, machine, bind, draw)
        made = Executable(
            calls, tokens, store, cache, machine, spans=tokens if phase is Phase.DECODE else 1, keep=keep,
            bind=bind, announce=announce, draw=draw,
        )  # fmt: skip
        made.how += f": {why_not}" if why_not else ""
        return made

    def build_drawn(top_k: int) -> Executable | None:
        calls = lowered(Phase.DECODE, ONE_TOKEN, "last", resident, None)
        draw = token_draw(calls, devices, top_k) if group is None else None
        return None if draw is None else bound(calls, Phase.DECODE, ONE_TOKEN, NOTHING, draw=draw)

    def build_layerwise(tokens: int) -> Executable:
        calls = lowered(Phase.PREFILL, tokens, "last")
        return LayerwiseExecutable(calls, tokens, store, cache, machine, bind=operators.bind(Phase.PREFILL))

    if group is not None and group.host:
        group.serve(build, cache)
        return None

    workspace = sum(need.workspace for need in needs.values())
    report = LoadReport(
        file_bytes, store.n_bytes, cache.n_bytes, workspace, seconds, choice.stand_ins, resident, store.rounded,
        {f"{src} -> {dst}": told for (src, dst), told in carriers.items()},
    )  # fmt: skip
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
        fork_elsewhere=None if group is None else group.fork,
        build_drawn=build_drawn,
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
    if not 1 <= value <= most:
        raise UserError(f"{value}", where=name, accepted=f"1..{most}")
    return value
