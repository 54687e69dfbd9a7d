"""A loaded model with its cache: tokens in, logits out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall, Phase, UserError
from kbench.model import ModelDescriptor, absorbing_is_faster

from .chat_template import ChatTemplate
from .executor import Executable
from .injected_operator import InjectedOperator
from .kv_cache import KvCache
from .tokenizer import Tokenizer
from .traffic import Traffic
from .weights import WeightStore

FloatArray = npt.NDArray[np.float32]

# Makes the program for (phase, tokens at most, "last" or "all" logits, keep every value).
Build = Callable[[Phase, int, str, bool], Executable]

# Rows of logits that are made at once: 64 rows of a vocabulary of 150 000 are 38 MB.
_LOGITS_CHUNK = 64

# A prefill program of its own for fewer tokens than these, where latent attention absorbs them: its arena holds queries
# of 576 floats for each of 128 heads, 19 MB.
FEW_TOKENS = 64

# Tokens of one step of layer-wise prefill: every step brings in the weights of every layer, and more tokens share them.
LAYERWISE_CHUNK = 4096


@dataclass(slots=True)
class Timings:
    """Tokens and the seconds that they took, since the session was made or ``clear`` was called."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    def clear(self) -> None:
        self.prefill_tokens, self.decode_tokens = 0, 0
        self.prefill_seconds, self.decode_seconds = 0.0, 0.0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What loading did: bytes of the file read, bytes that weights take now, seconds; in a rehearsal of rules, the
    implementations that only the real device has, with what stands in for each."""

    file_bytes: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    seconds: float
    stand_ins: Mapping[str, str] = field(default_factory=dict)


class Session:
    """One conversation at a time with one model.

    Attributes:
        descriptor, tokenizer, template: the model, its vocabulary, its chat template (None where it has none).
        cache: keys and values; ``position`` is how many tokens are in it.
        weights: the packed weights, which other sessions with the same file may share.
        threads, prefill_threads: threads of decode and of prefill where no placement says otherwise.
        timings: what ``prefill`` and ``decode`` took.
        report: what loading did.
        operators: those of somebody's own, by the module that each replaces.
        traffic: what moved between devices.
    """

    def __init__(
        self,
        descriptor: ModelDescriptor,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        cache: KvCache,
        build: Build,
        weights: WeightStore,
        *,
        chunk: int,
        threads: Mapping[Phase, int],
        report: LoadReport,
        operators: Mapping[str, InjectedOperator] | None = None,
        traffic: Traffic | None = None,
        layerwise: tuple[int, Callable[[int], Executable]] | None = None,
    ) -> None:
        """``build`` binds programs; ``chunk`` is the most tokens that one prefill step takes. ``layerwise``: prompts of
        more tokens than the first run layer by layer, in programs that the second builds for their length."""
        self._layerwise = layerwise
        self.descriptor, self.tokenizer, self.template = descriptor, tokenizer, template
        self.cache, self.chunk, self.report = cache, chunk, report
        self.threads, self.prefill_threads = threads[Phase.DECODE], threads[Phase.PREFILL]
        self.weights = weights
        self.operators = dict(operators or {})
        self.timings = Timings()
        self.traffic = Traffic() if traffic is None else traffic
        self._build = build
        self._decode = build(Phase.DECODE, 1, "last", False)
        self._prefill = build(Phase.PREFILL, chunk, "last", False)
        self._few: Executable | None = None
        self._all: Executable | None = None
        self._token = np.zeros(1, np.int32)
        self._ids: list[int] = []

    @property
    def position(self) -> int:
        return self.cache.position

    @property
    def cached_ids(self) -> tuple[int, ...]:
        """The tokens in the cache."""
        return tuple(self._ids)

    @property
    def decode_calls(self) -> tuple[OpCall, ...]:
        return self._decode.calls

    @property
    def prefill_calls(self) -> tuple[OpCall, ...]:
        return self._prefill.calls

    def prefill(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> FloatArray:
        """Adds ``tokens`` to what is cached; logits after the last of them, float32 ``[vocab]``, the caller's own.

        Raises:
            UserError: no tokens, ids outside the vocabulary, or more than the context has room for (nothing is added).
        """
        ids = self._checked(tokens)
        started = time.perf_counter()
        long = self._layerwise is not None and len(ids) > self._layerwise[0]
        most = LAYERWISE_CHUNK if long else self.chunk
        for begin in range(0, len(ids), most):
            part = ids[begin : begin + most]
            if long and self._layerwise is not None:
                program = self._layerwise[1](len(part))
            else:
                program = self._prefill_program(len(part))
            self._feed(program, part, len(part))
        self.timings.prefill_seconds += time.perf_counter() - started
        self.timings.prefill_tokens += len(ids)
        logits: FloatArray = program.logits(1)[0].copy()
        return logits

    def prefill_reusing(self, tokens: Sequence[int]) -> tuple[FloatArray, int]:
        """Makes the cache hold exactly ``tokens``, keeping the longest beginning that it holds already.

        Returns the logits after the last token, and how many tokens were kept. Errors as for ``prefill``.
        """
        # The last token is always run: its logits are wanted.
        most = min(len(self._ids), len(tokens) - 1)
        kept = next((i for i in range(most) if self._ids[i] != tokens[i]), max(most, 0))
        if len(tokens) > self.cache.capacity:
            # Against the whole context, not what is left of it; and before anything is forgotten.
            KvCache.refuse(0, len(tokens), self.cache.capacity)
        self.truncate(kept)
        return self.prefill(tokens[kept:]), kept

    def decode(self, token: int) -> FloatArray:
        """Adds one token; the logits after it, float32 ``[vocab]``: a view that the next call overwrites.

        Raises:
            UserError: the id is outside the vocabulary, or the context is full (nothing is added).
        """
        if not 0 <= token < self.descriptor.vocab:
            raise self._bad_id(token)
        started = time.perf_counter()
        cache = self.cache
        if cache.position >= cache.capacity:
            cache.reserve(1)
        self._token[0] = token
        self._decode.run(self._token, cache.position)
        cache.position += 1
        self._ids.append(token)
        logits: FloatArray = self._decode.logits(1)[0]
        self.timings.decode_seconds += time.perf_counter() - started
        self.timings.decode_tokens += 1
        return logits

    def logits(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> FloatArray:
        """Adds ``tokens``; logits after each of them, float32 ``[len(tokens), vocab]``. Errors as for ``prefill``."""
        ids = self._checked(tokens)
        chunk = min(self.chunk, _LOGITS_CHUNK)
        if self._all is None:
            self._all = self._build(Phase.PREFILL, chunk, "all", False)
        result = np.empty((len(ids), self.descriptor.vocab), np.float32)
        for begin in range(0, len(ids), chunk):
            part = ids[begin : begin + chunk]
            self._feed(self._all, part, chunk)
            result[begin : begin + len(part)] = self._all.logits(len(part))
        return result

    def trace(self, tokens: Sequence[int]) -> dict[str, npt.NDArray[np.generic]]:
        """Adds ``tokens``; every value of the model by name (``model.layers.3`` is what that layer puts out), each
        ``[tokens, width]``, logits of all tokens among them. For finding where two implementations part: slow, and
        in memory for every value at once."""
        ids = self._checked(tokens)
        program = self._build(Phase.PREFILL, len(ids), "all", True)
        self._feed(program, ids, len(ids))
        return program.values(len(ids))

    def profile(self, token: int) -> list[tuple[OpCall, float]]:
        """Decodes one token; every call with the seconds that it took, measured in place."""
        ids = self._checked([token])
        seconds = self._decode.profile(ids, self.cache.position)
        self.cache.position += 1
        self._ids.append(token)
        return list(zip(self._decode.calls, seconds, strict=True))

    def reset(self) -> None:
        """Forgets every token; weights and programs stay."""
        self.truncate(0)

    def truncate(self, position: int) -> None:
        """Keeps the first ``position`` tokens."""
        self.cache.truncate(position)
        del self._ids[position:]

    def _prefill_program(self, n: int) -> Executable:
        """What prefills the next ``n`` tokens. Programs are made for whole chunks, which latent attention decompresses
        the past for: for a few tokens behind a long past there is one that absorbs."""
        mla, few = self.descriptor.mla, min(FEW_TOKENS, self.chunk)
        if mla is None or n > few or not absorbing_is_faster(mla, n, self.position + n):
            return self._prefill
        if self._few is None:
            self._few = self._build(Phase.PREFILL, few, "last", False)
        return self._few

    def _feed(self, program: Executable, ids: npt.NDArray[np.int32], chunk: int) -> None:
        for begin in range(0, len(ids), chunk):
            part = ids[begin : begin + chunk]
            program.run(part, self.cache.position)
            self.cache.position += len(part)
            self._ids += part.tolist()

    def _checked(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        ids = np.asarray(tokens, dtype=np.int64).reshape(-1)
        if not ids.size:
            raise UserError("no tokens", where="prompt", accepted="at least one token")
        bad = (ids < 0) | (ids >= self.descriptor.vocab)
        if bad.any():
            raise self._bad_id(int(ids[bad][0]))
        self.cache.reserve(ids.size)
        return np.ascontiguousarray(ids, dtype=np.int32)

    def _bad_id(self, token: int) -> UserError:
        return UserError(f"token id {token}", where="tokens", accepted=f"0..{self.descriptor.vocab - 1}")
