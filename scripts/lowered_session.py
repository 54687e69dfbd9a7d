"""kbench's side of a comparison: the engine's session where the engine runs a model, else its calls in sequence.

For an architecture that can be planned but not run yet (DeepSeek-V2), the calls that the planner prices are lowered,
bound to the file's real weights and executed by the engine's own executor, routing and caches included: what is
missing is everything that only the engine adds (tokenizer, chat, placement on other devices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kbench.core import OpCall, Phase, Placement, Unsupported
from kbench.engine import DEFAULT_CHUNK, KvCache, load_model
from kbench.engine.executor import Executable
from kbench.engine.weights import WeightStore
from kbench.kernels import Cache, Pool, best
from kbench.model import ModelDescriptor, describe_gguf, lower, open_gguf


class LoweredSession:
    """Prefill and decode of a lowered model; as much of the engine's ``Session`` as a benchmark needs."""

    def __init__(
        self, descriptor: ModelDescriptor, weights: WeightStore, caches: Mapping[int, Cache], pool: Any,
        n_context: int, block: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.weights, self.position = weights, 0
        every = _Everywhere(Placement(block=block))

        def build(phase: Phase, tokens: int) -> Executable:
            calls = lower(descriptor, every, phase, tokens, n_context, resolve=best)
            weights.prepare(calls)
            return Executable(calls, tokens, weights, caches, lambda: pool, pool.threads)

        self._chunk = min(DEFAULT_CHUNK, n_context)
        self._decode, self._prefill = build(Phase.DECODE, 1), build(Phase.PREFILL, self._chunk)
        self._token = np.zeros(1, np.int32)

    @property
    def decode_calls(self) -> tuple[OpCall, ...]:
        return self._decode.calls

    @property
    def prefill_calls(self) -> tuple[OpCall, ...]:
        return self._prefill.calls

    def reset(self) -> None:
        self.position = 0

    def prefill(self, tokens: Sequence[int]) -> Any:
        ids = np.asarray(tokens, np.int32)
        for begin in range(0, len(ids), self._chunk):
            part = np.ascontiguousarray(ids[begin : begin + self._chunk])
            self._prefill.run(part, self.position)
            self.position += len(part)
        return self._prefill.logits(1)[0].copy()

    def decode(self, token: int) -> Any:
        self._token[0] = token
        self._decode.run(self._token, self.position)
        self.position += 1
        return self._decode.logits(1)[0]

    def profile(self, tokens: Sequence[int]) -> list[tuple[OpCall, float]]:
        """Seconds of each call of one step over ``tokens``."""
        program = self._decode if len(tokens) == 1 else self._prefill
        seconds = program.profile(np.asarray(tokens, np.int32), self.position)
        self.position += len(tokens)
        return list(zip(program.calls, seconds, strict=True))


class _Everywhere(Mapping[str, Placement]):
    """Every module placed alike."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def get(self, name: str, default: Any = None) -> Placement:
        return self._placement

    def __getitem__(self, name: str) -> Placement:
        return self._placement

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


def open_sessions(model: Path, n_context: int, threads: int, planes: Sequence[int]) -> dict[int, Any]:
    """A session for each number of activation planes: the engine's, or a ``LoweredSession``."""
    try:
        return {
            n: load_model(model, default=Placement(block={"activation_planes": n}), context=n_context, threads=threads)
            for n in planes
        }
    except Unsupported:
        return lowered_sessions(model, n_context, threads, planes)


def lowered_sessions(
    model: Path, n_context: int, threads: int, planes: Sequence[int]
) -> dict[int, LoweredSession]:  # fmt: skip
    """The same for any architecture that can be lowered; they share one copy of the weights and of the cache."""
    gguf = open_gguf(model)
    descriptor = describe_gguf(gguf)
    weights, pool, caches = WeightStore(gguf), Pool(threads), _caches(descriptor, n_context)
    return {
        n: LoweredSession(descriptor, weights, caches, pool, n_context, {"activation_planes": n}) for n in planes
    }  # fmt: skip


def _caches(descriptor: ModelDescriptor, n_context: int) -> Mapping[int, Cache]:
    mla = descriptor.mla
    if mla is None:
        return KvCache(descriptor.n_layers, descriptor.kv_heads, descriptor.head_dim, n_context).caches
    latent = (1, n_context, mla.kv_lora + mla.rope)
    return {i: Cache(np.zeros(latent, np.float16), np.zeros(0, np.float16)) for i in range(descriptor.n_layers)}
