"""A loaded model with its cache: tokens in, logits out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall, Phase, Unsupported, UserError
from kbench.model import ModelDescriptor, absorbing_is_faster

from .chat_template import ChatTemplate
from .drawing import drawn
from .drawn_steps import BuildDrawn, DrawnSteps
from .executor import Executable
from .injected_operator import InjectedOperator
from .kept import EVERYTHING, EXPERTS, NOTHING
from .kv_cache import STOP, KvCache
from .layerwise import LAYERWISE_CHUNK
from .load_options import FEW_TOKENS
from .load_report import LoadReport
from .sampling import Sampler, SamplingParams
from .timings import Timings
from .tokenizer import Tokenizer
from .traffic import Traffic
from .weights import WeightStore

FloatArray = npt.NDArray[np.float32]

# Makes the program for (phase, tokens at most, "last" or "all" logits, which values to keep).
Build = Callable[[Phase, int, str, str], Executable]

# Rows of logits that are made at once: 64 rows of a vocabulary of 150 000 are 38 MB.
_LOGITS_CHUNK = 64


class Session:
    """A model and what is cached of one conversation, or of as many as there are sequences.

    Sequence 0 is always there; methods that are not told of another one mean it. ``decode_batch`` adds one token to
    each of several in one step, which reads every weight once for all of them.

    Attributes:
        descriptor, tokenizer, template: the model, its vocabulary, its chat template (None where it has none).
        cache: keys and values.
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
        fork_elsewhere: Callable[[int, int], None] | None = None,
        build_drawn: BuildDrawn | None = None,
    ) -> None:
        """``build`` binds programs; ``chunk`` is the most tokens that one prefill step takes. ``layerwise``: prompts of
        more tokens than the first run layer by layer, in programs that the second builds for their length.
        ``fork_elsewhere`` makes one sequence a copy of another in the caches of other processes: source, target.
        ``build_drawn`` binds a decode step that ends with a draw from so many candidates, where a device can."""
        self._layerwise = layerwise
        self.descriptor, self.tokenizer, self.template = descriptor, tokenizer, template
        self.cache, self.chunk, self.report = cache, chunk, report
        self.threads, self.prefill_threads = threads[Phase.DECODE], threads[Phase.PREFILL]
        self.weights = weights
        self.operators = dict(operators or {})
        self.timings = Timings()
        self.traffic = Traffic() if traffic is None else traffic
        self._build = build
        self._decode = build(Phase.DECODE, 1, "last", NOTHING)
        self._prefill = build(Phase.PREFILL, chunk, "last", NOTHING)
        self._few: Executable | None = None
        self._all: Executable | None = None
        self._batch: Executable | None = None
        self._routed: Executable | None = None
        self._drawn = DrawnSteps(build_drawn, descriptor.vocab)
        self._token, self._span = np.zeros(1, np.int32), np.ones((1, 3), np.int64)
        self._fork_elsewhere = fork_elsewhere
        # By sequence that is in use, its tokens.
        self._ids: dict[int, list[int]] = {0: []}

    @property
    def position(self) -> int:
        """Tokens of sequence 0."""
        return self.cache.position

    @property
    def cached_ids(self) -> tuple[int, ...]:
        """The tokens of sequence 0, those that have left a ring too."""
        return tuple(self._ids[0])

    @property
    def sequences(self) -> tuple[int, ...]:
        """Those in use."""
        return tuple(sorted(self._ids))

    def ids_of(self, sequence: int) -> tuple[int, ...]:
        """A sequence's tokens.

        Raises:
            UserError: it is not in use.
        """
        return tuple(self._ids[self._used(sequence)])

    def new_sequence(self) -> int:
        """An empty sequence.

        Raises:
            UserError: all are in use.
        """
        most = self.cache.shape.sequences
        free = next((s for s in range(most) if s not in self._ids), None)
        if free is None:
            raise UserError(f"all {most} sequences are in use", where="sequences", todo="free one, or load with more")
        self._ids[free] = []
        return free

    def free_sequence(self, sequence: int) -> None:
        """Forgets a sequence, and gives its memory back. Sequence 0 stays, empty."""
        self.cache.release(self._used(sequence))
        del self._ids[sequence]
        self._ids.setdefault(0, [])

    def fork(self, sequence: int = 0) -> int:
        """A new sequence with the same tokens, e.g. a prompt that several answers continue.

        Raises:
            UserError: all sequences are in use.
        """
        self._used(sequence)
        made = self.new_sequence()
        self.cache.fork(sequence, made)
        if self._fork_elsewhere is not None:
            self._fork_elsewhere(sequence, made)
        self._ids[made] = list(self._ids[sequence])
        return made

    def _used(self, sequence: int) -> int:
        if sequence not in self._ids:
            used = ", ".join(map(str, self.sequences))
            raise UserError(f"sequence {sequence}", where="sequences", accepted=f"one in use: {used}")
        return sequence

    @property
    def how_decode_runs(self) -> str:
        """In words: call by call, and why; or by a plan, on a GPU as one CUDA graph."""
        return self._decode.how

    @property
    def decode_calls(self) -> tuple[OpCall, ...]:
        return self._decode.calls

    @property
    def prefill_calls(self) -> tuple[OpCall, ...]:
        return self._prefill.calls

    def prefill(self, tokens: Sequence[int] | npt.NDArray[np.integer], sequence: int = 0) -> FloatArray:
        """Adds ``tokens`` to a sequence; logits after the last of them, float32 ``[vocab]``, the caller's own.

        Raises:
            UserError: no tokens, ids outside the vocabulary, or more than the context has room for (nothing is added);
                a sequence that is not in use.
        """
        ids = self._checked(tokens, sequence)
        started = time.perf_counter()
        long = self._layerwise is not None and len(ids) > self._layerwise[0]
        # What a step may take is what the cache has slots for.
        most = min(LAYERWISE_CHUNK, self.cache.shape.step) if long else self.chunk
        for begin in range(0, len(ids), most):
            part = ids[begin : begin + most]
            if long and self._layerwise is not None:
                program = self._layerwise[1](len(part))
            else:
                program = self._prefill_program(len(part), sequence)
            self._feed(program, part, len(part), sequence)
        self.timings.prefill_seconds += time.perf_counter() - started
        self.timings.prefill_tokens += len(ids)
        logits: FloatArray = program.logits(1)[0].copy()
        return logits

    def prefill_reusing(self, tokens: Sequence[int], sequence: int = 0) -> tuple[FloatArray, int]:
        """Makes a sequence hold exactly ``tokens``, keeping the longest beginning that it holds already.

        Where layers keep a window only, or the ring has gone around, tokens may have left that the first new one would
        see: then nothing can be kept. Returns the logits after the last token, and how many tokens were kept. Errors as
        for ``prefill``.
        """
        ids = self._ids[self._used(sequence)]
        # The last token is always run: its logits are wanted.
        most = min(len(ids), len(tokens) - 1)
        kept = next((i for i in range(most) if ids[i] != tokens[i]), max(most, 0))
        self.check(tokens)  # against the whole context, not what is left of it; and before anything is forgotten
        if not self.cache.can_keep(kept, sequence):
            kept = 0
        self.truncate(kept, sequence)
        return self.prefill(tokens[kept:], sequence), kept

    def decode(self, token: int, sequence: int = 0) -> FloatArray:
        """Adds one token to a sequence; the logits after it, float32 ``[vocab]``: a view that the next call overwrites.

        Raises:
            UserError: the id is outside the vocabulary, or the context is full (nothing is added).
        """
        self._step(self._decode, token, sequence)
        logits: FloatArray = self._decode.logits(1)[0]
        return logits

    def draws(self, params: SamplingParams) -> bool:
        """Whether ``decode_drawn`` draws as ``params`` say: where a device with the kernels makes the logits."""
        return self._drawn.of(params) is not None

    def decode_drawn(self, token: int, sampler: Sampler, sequence: int = 0) -> int:
        """Adds one token to a sequence, and draws the one after it on the device that makes the logits, which stay
        there; ``draws`` must be true of the sampler's parameters. Errors as for ``decode``; CheckBroken where a logit
        is NaN or infinite."""
        found = self._drawn.of(sampler.params)
        assert found is not None
        step, draw = found
        draw.write(*sampler.drawn_by())
        self._step(step, token, sequence)
        return drawn(draw)

    def _step(self, program: Executable, token: int, sequence: int) -> None:
        """Runs a step of one token."""
        if not 0 <= token < self.descriptor.vocab:
            raise self._bad_id(token)
        started = time.perf_counter()
        ids = self._ids[self._used(sequence)]
        self.cache.reserve({sequence: 1})
        self._token[0] = token
        position = self.cache.position_of(sequence)
        self._span[0, 0], self._span[0, 1] = sequence, position
        program.run(self._token, self._span)
        self.cache.advance([(sequence, position, 1)])
        ids.append(token)
        self.timings.decode_seconds += time.perf_counter() - started
        self.timings.decode_tokens += 1

    def decode_batch(self, tokens: Sequence[int], sequences: Sequence[int]) -> FloatArray:
        """Adds ``tokens[i]`` to ``sequences[i]``; the logits after each, float32 ``[len(tokens), vocab]``: a view that
        the next call overwrites.

        Raises:
            UserError: no tokens, another number of sequences or one twice; an id outside the vocabulary; a context is
                full; a sequence is not in use. Nothing is added.
        """
        if len(tokens) != len(sequences) or not len(tokens):
            found = f"{len(tokens)} tokens for {len(sequences)} sequences"
            raise UserError(found, where="sequences", accepted="one token for each of them")
        twice = next((s for i, s in enumerate(sequences) if s in sequences[:i]), None)
        if twice is not None:
            raise UserError(f"sequence {twice} twice", where="sequences", accepted="each once")
        started = time.perf_counter()
        spans = np.ones((len(tokens), 3), np.int64)
        for row, (token, sequence) in enumerate(zip(tokens, sequences, strict=True)):
            if not 0 <= token < self.descriptor.vocab:
                raise self._bad_id(token)
            spans[row, :2] = sequence, self.cache.position_of(self._used(sequence))
        self.cache.reserve(dict.fromkeys(sequences, 1))
        if self._batch is None:
            self._batch = self._build(Phase.DECODE, self.cache.shape.sequences, "last", NOTHING)
        self._batch.run(np.asarray(tokens, np.int32), spans)
        self.cache.advance(spans.tolist())
        for token, sequence in zip(tokens, sequences, strict=True):
            self._ids[sequence].append(int(token))
        logits: FloatArray = self._batch.logits(len(tokens))
        self.timings.decode_seconds += time.perf_counter() - started
        self.timings.decode_tokens += len(tokens)
        return logits

    def logits(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> FloatArray:
        """Adds ``tokens``; logits after each of them, float32 ``[len(tokens), vocab]``. Errors as for ``prefill``."""
        ids = self._checked(tokens)
        chunk = min(self.chunk, _LOGITS_CHUNK)
        if self._all is None:
            self._all = self._build(Phase.PREFILL, chunk, "all", NOTHING)
        result = np.empty((len(ids), self.descriptor.vocab), np.float32)
        for begin in range(0, len(ids), chunk):
            part = ids[begin : begin + chunk]
            self._feed(self._all, part, chunk, 0)
            result[begin : begin + len(part)] = self._all.logits(len(part))
        return result

    def trace(self, tokens: Sequence[int]) -> dict[str, npt.NDArray[np.generic]]:
        """Adds ``tokens``; every value of the model by name (``model.layers.3`` is what that layer puts out), each
        ``[tokens, width]``, logits of all tokens among them. For finding where two implementations part: slow, and
        in memory for every value at once."""
        ids = self._checked(tokens)
        whole = self.cache.takes_at_once(len(ids)) and len(ids) <= self.cache.capacity
        step = len(ids) if whole else self.chunk
        return self._values(self._build(Phase.PREFILL, step, "all", EVERYTHING), ids, step)

    def _values(self, program: Executable, ids: npt.NDArray[np.int32], step: int) -> dict[str, npt.NDArray[Any]]:
        parts = []
        for begin in range(0, len(ids), step):
            part = ids[begin : begin + step]
            self._feed(program, part, step, 0)
            parts.append(program.values(len(part)))
        return {name: np.concatenate([values[name] for values in parts]) for name in parts[0]}

    def experts(self, tokens: Sequence[int]) -> dict[str, npt.NDArray[np.int32]]:
        """Adds ``tokens``; the experts that each of them visited, by router module: ids ``[tokens, top_k]``. Errors as
        for ``prefill``.

        Raises:
            Unsupported: the model has no routers, or somebody's own operators do their work.
        """
        ids = self._checked(tokens)
        if self._routed is None:
            self._routed = self._build(Phase.PREFILL, self.chunk, "last", EXPERTS)
        if not self._routed.values(1):
            raise Unsupported(
                "no routers", where=self.descriptor.name, accepted="a mixture of experts that kbench runs"
            )
        return {name.removesuffix(".ids"): v for name, v in self._values(self._routed, ids, self.chunk).items()}

    def profile(self, token: int) -> list[tuple[OpCall, float]]:
        """Decodes one token; every call with the seconds that it took, measured in place."""
        ids = self._checked([token])
        spans = np.array([(0, self.cache.position, 1)], np.int64)
        seconds = self._decode.profile(ids, spans)
        self.cache.advance(spans.tolist())
        self._ids[0].append(token)
        return list(zip(self._decode.calls, seconds, strict=True))

    def reset(self) -> None:
        """Forgets every token and every sequence but 0; weights and programs stay."""
        for sequence in self.sequences[1:]:
            self.free_sequence(sequence)
        self.truncate(0)

    def truncate(self, position: int, sequence: int = 0) -> None:
        """Keeps the first ``position`` tokens of a sequence.

        Raises:
            ValueError: there are fewer.
            UserError: tokens that the next one would see have left the cache; or the sequence is not in use.
        """
        self.cache.truncate(position, self._used(sequence))
        del self._ids[sequence][position:]

    def check(self, prompt: Sequence[int]) -> None:
        """Raises UserError where a sequence that holds nothing yet could not take ``prompt``."""
        self._ids_in_vocabulary(prompt)
        if self.cache.shape.overflow == STOP and len(prompt) > self.cache.capacity:
            KvCache.refuse(0, len(prompt), self.cache.capacity)

    def _prefill_program(self, n: int, sequence: int) -> Executable:
        """What prefills the next ``n`` tokens. Programs are made for whole chunks, which latent attention decompresses
        the past for: for a few tokens behind a long past there is one that absorbs."""
        mla, few = self.descriptor.mla, min(FEW_TOKENS, self.chunk)
        if mla is None or n > few or not absorbing_is_faster(mla, n, self.cache.position_of(sequence) + n):
            return self._prefill
        if self._few is None:
            self._few = self._build(Phase.PREFILL, few, "last", NOTHING)
        return self._few

    def _feed(self, program: Executable, ids: npt.NDArray[np.int32], chunk: int, sequence: int) -> None:
        for begin in range(0, len(ids), chunk):
            part = ids[begin : begin + chunk]
            spans = np.array([(sequence, self.cache.position_of(sequence), len(part))], np.int64)
            program.run(part, spans)
            self.cache.advance(spans.tolist())
            self._ids[sequence] += part.tolist()

    def _checked(self, tokens: Sequence[int] | npt.NDArray[np.integer], sequence: int = 0) -> npt.NDArray[np.int32]:
        ids = self._ids_in_vocabulary(tokens)
        self.cache.reserve({self._used(sequence): ids.size})
        return ids

    def _ids_in_vocabulary(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        ids = np.asarray(tokens, dtype=np.int64).reshape(-1)
        if not ids.size:
            raise UserError("no tokens", where="prompt", accepted="at least one token")
        bad = (ids < 0) | (ids >= self.descriptor.vocab)
        if bad.any():
            raise self._bad_id(int(ids[bad][0]))
        return np.ascontiguousarray(ids, dtype=np.int32)

    def _bad_id(self, token: int) -> UserError:
        return UserError(f"token id {token}", where="tokens", accepted=f"0..{self.descriptor.vocab - 1}")
