"""What is asked of the tuner: model, budgets, workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kbench.core import Device, Phase, UserError, check_kv, did_you_mean

from .profile import DEFAULT_GPU

# Name -> what is minimised.
OBJECTIVES = {
    "workload": "the time to read the prompt and to write the answer",
    "decode": "the time of a generated token",
    "prefill": "the time to read the prompt",
    "ttft": "the time until the first token: the prompt and one token",
    "balanced": "the slowdowns of both phases against unlimited memory, weighed alike",
}
_TIE = 1e-6

DEFAULT_MODEL = "deepseek-v2-chat"
DEFAULT_CONTEXT = 4096

# A question with some context, and an answer of a page: what a chat turn looks like.
DEFAULT_PROMPT_TOKENS = 1024
DEFAULT_GEN_TOKENS = 256

# Tokens of one prefill step, as the engine takes them.
DEFAULT_CHUNK = 256


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A search of threads and kernel parameters.

    Attributes:
        storage: where it keeps what it tried: the URL of a database as Optuna takes it, or a file; None: a file beside
            the records.
        budget_seconds: no measurement begins later than this; None: until it ends by itself.
        seed: of TPE.
    """

    storage: str | None = None
    budget_seconds: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """A tuning job.

    Attributes:
        model: a GGUF file, a config.json or the name of an embedded descriptor.
        quant: quantization of an embedded model; None: Q4_K_M. A file has its own.
        vram_bytes: budget of the GPU, or of each; None takes the GPUs that are there, 0 takes none.
        dram_bytes: budget of the host; None takes what is free.
        gpu: profile that a GPU is priced from; several, by commas, for several GPUs, of which the last one counts for
            all that follow.
        context: tokens that the cache must hold, for each sequence.
        batch: sequences that are decoded at once.
        objective: what is minimised: one of ``OBJECTIVES``.
        prompt_tokens, gen_tokens: the workload whose time is minimised; None: a default that fits ``context``.
        threads: pins the CPU thread count; None searches.
        chunk: tokens of one prefill step.
        kv: type of the cache.
        kv_choices, chunk_choices: types and steps to choose the fastest from, those that others must beat first; empty:
            ``kv`` and ``chunk`` as they are.
        routing: a histogram of visits to experts, as `kbench bench --routing` records it; None: visited evenly.
        output: where the rules go; None: ``kbench-rules/<model>.yaml``.
        prove: run a real model under the rules.
        remeasure: measure again what the store has.
        search: also search threads and kernel parameters; None: threads from a sweep, and the kernels' defaults.
    """

    model: str = DEFAULT_MODEL
    quant: str | None = None
    vram_bytes: int | Mapping[Device, int] | None = None
    dram_bytes: int | None = None
    gpu: str = DEFAULT_GPU
    context: int = DEFAULT_CONTEXT
    batch: int = 1
    objective: str = "workload"
    prompt_tokens: int | None = None
    gen_tokens: int | None = None
    threads: int | None = None
    chunk: int = DEFAULT_CHUNK
    kv: str = "f16"
    kv_choices: tuple[str, ...] = ()
    chunk_choices: tuple[int, ...] = ()
    routing: Path | None = None
    output: Path | None = None
    prove: bool = True
    remeasure: bool = False
    search: SearchRequest | None = None

    @property
    def kvs(self) -> tuple[str, ...]:
        """Cache types that may be chosen."""
        return self.kv_choices or (self.kv,)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Tokens of a prefill step that may be chosen."""
        return self.chunk_choices or (self.chunk,)


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens read and written by each of ``sequences`` requests: prompts one after another, in steps of ``chunk``
    tokens; answers all at once. ``tail``: what a last step that is partly filled takes, of a full one's time; None: as
    much as it is filled."""

    prompt_tokens: int
    gen_tokens: int
    chunk: int
    objective: str = "workload"
    sequences: int = 1
    tail: float | None = None

    @property
    def times(self) -> dict[Phase, float]:
        """What a step of each phase counts in what is minimised; what does not count breaks ties."""
        prefill, decode = self.sequences * self.n_chunks, float(self.gen_tokens)
        if self.objective in ("prefill", "ttft"):
            decode = 1.0 if self.objective == "ttft" else _TIE * decode
        return {Phase.PREFILL: _TIE * prefill if self.objective == "decode" else prefill, Phase.DECODE: decode}

    @property
    def n_chunks(self) -> float:
        """Prefill steps of one prompt; a last one that is partly filled counts for what it takes."""
        if self.tail is None or not self.tail_tokens:
            return self.prompt_tokens / self.chunk
        return self.prompt_tokens // self.chunk + self.tail

    @property
    def tail_tokens(self) -> int:
        """Of the last step, if it is partly filled; else 0."""
        return self.prompt_tokens % self.chunk

    def prefill_tokens_per_s(self, step_seconds: float) -> float:
        """Of a whole prompt, when a full step takes so long."""
        return self.prompt_tokens / (self.n_chunks * step_seconds)

    @property
    def prefill_context(self) -> int:
        """Mean context of the prefill steps: attention's work grows linearly with it, so the mean prices the sum."""
        return (self.prompt_tokens + self.chunk) // 2

    @property
    def decode_context(self) -> int:
        """Context half way through the answer."""
        return self.prompt_tokens + max(1, self.gen_tokens // 2)


def workload(request: TuneRequest) -> Workload:
    """The request's workload.

    Raises:
        UserError: counts below 1, or a workload that is longer than the context; an unknown cache type.
    """
    if request.objective not in OBJECTIVES:
        raise UserError(
            f"{request.objective!r}",
            where="--objective",
            accepted=", ".join(OBJECTIVES),
            todo=did_you_mean(request.objective, OBJECTIVES),
        )
    for name in ("context", "batch", "prompt_tokens", "gen_tokens", "threads", "chunk"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise UserError(f"{value}", where=f"--{name.replace('_', '-')}", accepted="a positive number")
    check_kv(request.kv, where="--kv")
    if request.context < 2:
        raise UserError(f"{request.context}", where="--context", accepted="at least 2: one to read, one to write")
    gen = request.gen_tokens
    if gen is None:
        gen = min(DEFAULT_GEN_TOKENS, max(1, request.context // 4))
    prompt = request.prompt_tokens
    if prompt is None:
        prompt = max(1, min(DEFAULT_PROMPT_TOKENS, request.context - gen))
    if prompt + gen > request.context:
        raise UserError(
            f"{prompt} prompt and {gen} generated tokens do not fit a context of {request.context}",
            where="workload",
            todo=f"use --context {prompt + gen} or more",
        )
    return Workload(prompt, gen, min(request.chunk, prompt), request.objective, request.batch)
