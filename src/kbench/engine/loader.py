"""From a GGUF file to a session: describe, place, lower, check that it fits, pack, bind."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kbench.core import (
    CPU,
    INJECTED,
    Assignment,
    Device,
    InvalidEnvironment,
    OpCall,
    OverBudget,
    Phase,
    Placement,
    Problem,
    Unsupported,
    UserError,
    allowed_cpus,
    check_kv,
    default_threads,
    format_bytes,
    read_cgroup,
    thread_limit,
)
from kbench.kernels import best, block_errors, implementation
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
from .executor import Executable
from .kv_cache import KvCache
from .memory import available_bytes
from .operator_store import OperatorStore
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
        trust: packages whose operators the placements may name, besides those installed as such.

    Raises:
        CorruptFile, Unsupported, UserError: the file, the rules or an argument; named.
        InvalidEnvironment: a device or an implementation that this machine has not.
        OverBudget: weights, cache and workspace exceed the memory that is free; by how much, and the largest context
            that fits. Nothing was loaded.
    """
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
        calls = lower(descriptor, assignment, phase, tokens, context, kv=kv, logits=logits, resolve=best_here)
        return [_with_threads(_runnable(call), counts[phase], most_threads) for call in calls]

    plans = [lowered(Phase.DECODE, 1, "last"), lowered(Phase.PREFILL, chunk, "last")]
    store = WeightStore(gguf) if weights is None else weights
    operators = OperatorStore(
        descriptor,
        tree,
        assignment,
        store,
        lambda placed, phase, logits: lowered(phase, 1, logits, placed),
        trust=trust,
        threads=counts[Phase.DECODE],
    )
    every_call = [call for plan in plans for call in plan]
    workspace = plan_arena(plans[0], 1).n_bytes + plan_arena(plans[1], chunk).n_bytes
    _check_memory(store.estimate(every_call), kv_bytes_per_token(descriptor, kv), workspace, context)

    started = time.perf_counter()
    file_bytes = store.prepare(every_call, progress)
    operators.load()
    seconds = time.perf_counter() - started
    cache = KvCache(descriptor, context, kv)
    pool = _pool(max(call.threads or 1 for call in every_call))

    def build(phase: Phase, tokens: int, logits: str, keep_all: bool) -> Executable:
        calls = lowered(phase, tokens, logits)
        store.prepare(calls)
        bind = operators.bind(phase)
        return Executable(calls, tokens, store, cache.caches, pool, keep_all=keep_all, bind=bind)

    report = LoadReport(file_bytes, store.n_bytes, cache.n_bytes, workspace, seconds)
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
    )


def best_here(problem: Problem, device: Device) -> str:
    """The best implementation on ``device``; InvalidEnvironment where the machine has no such device."""
    _check_device(device)
    return best(problem, device)


def _check_device(device: Device) -> None:
    if device == CPU:
        return
    import torch

    if not torch.cuda.is_available():
        raise InvalidEnvironment(
            f"the rules put a module on {device}, and this machine has no CUDA device",
            todo="run it on a machine with a GPU, or tune for this one: kbench tune MODEL --vram 0",
        )
    raise Unsupported(f"running modules on {device}", accepted="cpu", todo="tune with --vram 0")


def _runnable(call: OpCall) -> OpCall:
    """``call`` with an implementation that runs it here.

    An implementation made for matrices may be named for a module that also rotates or adds; those calls go to the
    best one. A matrix that it cannot take is an error: something slower than what was asked for would run unnoticed.
    """
    if call.op == INJECTED:
        return call
    _check_device(call.device)
    asked = implementation(call.implementation)
    where = f"{call.module}: {call.op}"
    runnable = asked.runnable()
    if not runnable.ok:
        raise InvalidEnvironment(f"{asked.name} does not run here: {runnable.reason}", where=where)
    supported = asked.supports(call.problem)
    if supported.ok:
        return call
    replacement = best(call.problem, call.device)
    if call.weights and call.op != "rms_norm":
        raise Unsupported(
            f"{asked.name} does not take {call.problem.key}: {supported.reason}",
            where=where,
            todo=f"use {replacement} or auto for it",
        )
    return _with_implementation(call, replacement)


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


def _with_implementation(call: OpCall, name: str) -> OpCall:
    return dataclasses.replace(call, implementation=name)


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


def _check_memory(weight_bytes: int, token_bytes: int, workspace_bytes: int, context: int) -> None:
    """``token_bytes``: what the cache takes for each token."""
    fixed, free = weight_bytes + workspace_bytes + _MARGIN_BYTES, available_bytes()
    needed = fixed + context * token_bytes
    if needed <= free:
        return
    fits = (free - fixed) // token_bytes
    raise OverBudget(
        f"{format_bytes(needed - free)} short: weights {format_bytes(weight_bytes)}, cache for {context} tokens "
        f"{format_bytes(context * token_bytes)}, workspace {format_bytes(workspace_bytes)}, reserve "
        f"{format_bytes(_MARGIN_BYTES)}; {format_bytes(free)} are free",
        where="memory",
        accepted=f"a context of at most {fits}" if fits > 0 else "",
        todo=f"use --context {fits} or less"
        if fits > 0
        else "use a smaller quantization, or free memory: without any cache it does not fit either",
    )


def _pool(threads: int) -> Callable[[], Any]:
    @functools.lru_cache(maxsize=1)
    def make() -> Any:
        from kbench.kernels import Pool

        return Pool(threads)

    return make
