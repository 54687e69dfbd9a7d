"""How a model is loaded: what ``load_model`` takes besides the file and the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kbench.core import Device, Placement

from .weights import Progress, WeightStore

# Tokens of one prefill step. Larger chunks reuse each weight more often, but from about this many on a matrix
# product is bound by arithmetic, and the activations of a step still fit the last-level cache.
DEFAULT_CHUNK = 256

# A prefill program of its own for fewer tokens than these, where latent attention absorbs them: its arena holds queries
# of 576 floats for each of 128 heads, 19 MB.
FEW_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Attributes:
    default: placement of what no rule and no assignment places: by default the CPU with the best implementation there,
        or what the dialect of the rules says.
    context: tokens that a sequence may have; by default what the model was trained for, up to 4096.
    overflow: after so many tokens: ``stop``, or ``ring``: the oldest leave, and a token sees the last ``context``.
    sequences: conversations that there is room for, each with ``context`` tokens.
    cache_tokens: on a GPU, tokens that there is room for in all sequences together, in whole pages; by default in each
        its whole context. What a sequence was forked with counts once.
    kv: type of the cache: ``f16``, ``bf16``, ``q8_0`` or ``f32``.
    threads: threads of native code; by default one per physical core, at most the control group's quota. Modules that
        a placement gives another count use that one: at most ``threads`` or ``prefill_threads`` where either is given,
        else at most one per logical processor, within the quota.
    prefill_threads: threads of prefill; by default ``threads``.
    chunk: the most tokens that one prefill step takes.
    progress: told (bytes packed, bytes to pack) after each tensor.
    weights: those of another session with the same file: what they have packed is shared, not packed again.
    trust: packages whose operators the placements may name, besides those installed as such.
    alias: devices that stand for others: ``{Device("cuda"): CPU}`` rehearses rules for a GPU without one
        (``parse_alias`` reads ``cuda:0=cpu``).
    graph: a decode step over several devices runs by a plan, on a GPU as one CUDA graph, where that can be; False: call
        by call.
    defer_experts: in decode, what the CPU's routed experts make is added one layer later, so that a GPU need not wait
        for it: an approximation.
    """

    default: Placement | None = None
    context: int | None = None
    overflow: str = "stop"
    sequences: int = 1
    cache_tokens: int | None = None
    kv: str = "f16"
    threads: int | None = None
    prefill_threads: int | None = None
    chunk: int = DEFAULT_CHUNK
    progress: Progress | None = None
    weights: WeightStore | None = None
    trust: Iterable[str] = ()
    alias: Mapping[Device, Device] | None = None
    graph: bool = True
    defer_experts: bool = False
