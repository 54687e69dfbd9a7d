"""The proof: a real model runs under the emitted rules, and what it did is stored beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kbench.core import CPU, Assignment, KbenchError
from kbench.model import ModelDescriptor
from kbench.results import Record, Store
from kbench.rules import RuleSet
from kbench.suites import measure_generation

from .request import TuneRequest, Workload

# Loads a model for running, as the request says. Any: the engine's session, of a package not known here.
LoadSession = Callable[[Path, RuleSet, TuneRequest], Any]

# Enough tokens for a median, few enough for a tune that takes seconds.
_MAX_GEN_TOKENS = 64
_REPETITIONS = 3


@dataclass(frozen=True, slots=True)
class Proof:
    """Measured tokens/s, or the reason why there are none."""

    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    decode_interval: tuple[float, float] | None = None
    reason: str = ""


def prove(
    request: TuneRequest,
    descriptor: ModelDescriptor,
    workload: Workload,
    rules: RuleSet,
    assignment: Assignment,
    store: Store,
    load_session: LoadSession | None,
) -> Proof:
    """Runs the workload's prompt and up to 64 of its tokens, three times; the records go to the store.

    The tokens are those around the middle of the answer, which are the ones that the price is of: attention has more to
    read with every token.
    """
    path = Path(request.model)
    if not path.is_file():
        return Proof(reason="no weights: an embedded descriptor was planned; give a GGUF file to run it")
    if any(placement.generate_device != CPU for placement in assignment.values()):
        return Proof(reason="the rules use a GPU whose times are modelled: nothing to run them on here")
    if not request.prove or load_session is None:
        return Proof(reason="not asked for")
    if request.batch > 1:
        return Proof(reason="a batch was planned; what runs here is one sequence")
    try:
        session = load_session(path, rules, request)
    except KbenchError as error:
        return Proof(reason=f"the engine did not load it: {error.message}")
    rng = np.random.default_rng(0)
    prompt = [int(token) for token in rng.integers(0, descriptor.vocab, workload.prompt_tokens)]
    n_tokens = min(workload.gen_tokens, _MAX_GEN_TOKENS)
    n_between = workload.decode_context - n_tokens // 2 - len(prompt)
    n_between = max(0, min(n_between, workload.gen_tokens - n_tokens))  # all of it within the context
    between = [int(token) for token in rng.integers(0, descriptor.vocab, n_between)]
    timing = measure_generation(session, prompt, n_tokens, _REPETITIONS, between=between)
    params: dict[str, int | float | str] = {
        "model": descriptor.name,
        "quant": descriptor.quant,
        "prompt_tokens": len(prompt),
        "gen_tokens": n_tokens,
        "depth": len(prompt) + n_between,
    }
    decode_samples = [seconds for run in timing.decode_samples_seconds for seconds in run]
    store.append(
        [
            Record.make(("decode", params), "engine", threads=request.threads, result=decode_samples),
            Record.make(("prefill", params), "engine", threads=request.threads, result=timing.prefill_samples_seconds),
        ],
        suite="tune",
    )
    slow, fast = (float(q) for q in np.quantile(decode_samples, (0.75, 0.25)))
    return Proof(timing.decode_tokens_per_s, timing.prefill_tokens_per_s, (1 / slow, 1 / fast))
