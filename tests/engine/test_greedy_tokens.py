"""128 greedy tokens of every architecture that generates: those of transformers' ``generate``, over its own cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_oracle import greedy, relative_error
from test_against_transformers import TOLERANCE, load

from kbench.kernels import implementations
from kbench.model import ARCHITECTURES, describe_gguf, open_gguf

NATIVE = [item.name for item in implementations() if item.name.startswith("cpu.") and item.runnable().ok]
# Model -> the seed of its prompt: one with which no step comes near a tie (the test tells if that should change).
PROMPT_SEEDS = {
    "llama": 1, "llama3": 2, "qwen2": 3, "qwen3": 1, "mixtral": 1, "qwen2moe": 2, "qwen3moe": 2, "glm4moe": 6,
    "glm4moe-air": 2, "gpt-oss": 1, "v2-lite": 4, "v2": 4, "v3": 5, "kimi": 3,
}  # fmt: skip
N_PROMPT, N_TOKENS = 20, 128

Models = dict[str, tuple[Path, Any]]


@pytest.fixture(scope="module")
def models(tiny_models: Models, tiny_deepseeks: Models) -> Models:
    return tiny_models | tiny_deepseeks


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Products of a few thousand numbers: a second thread only waits, at full speed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_architecture_that_generates_is_here(models: Models) -> None:
    assert sorted(models) == sorted(PROMPT_SEEDS)
    found = {describe_gguf(open_gguf(path)).architecture for path, _ in models.values()}
    assert found == {name for name, entry in ARCHITECTURES.items() if entry.generates}


def tolerance(position: int) -> float:
    """Of logits, norm-wise. Behind a long past two float32 computations part by more than in short texts: each rounds a
    frequency and its product with the position, so that angles differ by some ``position * 2^-24``; a score of about
    ten, which random weights of ten times the usual spread give, turns that into ten times as much of a weight."""
    return TOLERANCE + 10 * position * 2.0**-24


@pytest.mark.parametrize("name", PROMPT_SEEDS)
def test_greedy_tokens_are_the_same_for_128_steps(models: Models, name: str) -> None:
    """Equality is no luck. Models and prompts are random from fixed seeds; at every step the best logit leads the
    second by more than ``tolerance`` lets them move towards each other. And logits are held to it step by step, so that
    a router that ties, which sends a token to another expert, shows as that and not as another token later."""
    path, model = models[name]
    prompt = np.random.default_rng(PROMPT_SEEDS[name]).integers(0, 150, N_PROMPT).tolist()
    expected, logits = greedy(model, prompt, N_TOKENS)
    # A text that only repeats itself would show little.
    assert len(expected) == N_TOKENS and len(set(expected)) > 30
    allowed = [tolerance(N_PROMPT - 1 + step) for step in range(N_TOKENS)]
    best_two = np.sort(logits, axis=-1)[:, -2:]
    leads = (best_two[:, 1] - best_two[:, 0]) / np.linalg.norm(logits, axis=-1)
    tied = np.flatnonzero(leads <= 2 * np.array(allowed))
    assert not len(tied), f"transformers' own logits nearly tie at steps {tied.tolist()}: the prompt wants another seed"
    for implementation in ("reference", *NATIVE[:1]):
        session = load(path, implementation, context=N_PROMPT + N_TOKENS, threads=1)
        found = session.prefill(prompt)
        for step, token in enumerate(expected):
            error = relative_error(found, logits[step])
            assert error <= allowed[step], f"{implementation}, step {step}: logits are off by {error:.1e}"
            assert int(found.argmax()) == token, f"{implementation}, step {step}"
            found = session.decode(token)
