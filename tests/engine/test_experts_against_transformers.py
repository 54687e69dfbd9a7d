"""Mixtures of experts against Hugging Face transformers: float32 and native kernels, every way to feed the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_oracle import hidden_states, relative_error
from test_against_transformers import TOLERANCE, check_layers, load

from kbench.engine import Session
from kbench.kernels import implementations

NATIVE = [i.name for i in implementations() if i.name.startswith("cpu.") and i.runnable().ok]
# The files hold float32, which native kernels multiply as such; the cache is float32 too. Errors are the reference's.
IMPLEMENTATIONS = ["reference", "torch", *NATIVE]
MODELS = ["mixtral", "qwen2moe", "qwen3moe"]
N_GREEDY = 128

Models = dict[str, tuple[Path, Any]]


def feed(session: Session, ids: list[int], n_prompt: int) -> np.ndarray:
    """Logits after each token from the prompt's last on."""
    session.reset()
    rows = [session.prefill(ids[:n_prompt]).copy()]
    rows += [session.decode(token).copy() for token in ids[n_prompt:]]
    return np.stack(rows)


@pytest.mark.parametrize("name", MODELS)
def test_layer_by_layer(tiny_models: Models, name: str) -> None:
    path, model = tiny_models[name]
    check_layers(load(path), model, np.random.default_rng(1).integers(0, 150, 70).tolist(), TOLERANCE)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_prefill_chunks_and_decode(tiny_models: Models, name: str, implementation: str) -> None:
    path, model = tiny_models[name]
    ids = np.random.default_rng(2).integers(0, 150, 48).tolist()
    _, expected = hidden_states(model, ids)
    for chunk in (64, 7):
        session = load(path, implementation, chunk=chunk, threads=1 if implementation == "torch" else 2)
        assert relative_error(session.logits(ids), expected) <= TOLERANCE
        assert relative_error(feed(session, ids, 30), expected[29:]) <= TOLERANCE


@pytest.mark.parametrize("implementation", ["reference", NATIVE[0]])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens(tiny_models: Models, name: str, implementation: str) -> None:
    """transformers' own logits over what was generated name the same tokens: one forward instead of 128."""
    path, model = tiny_models[name]
    session = load(path, implementation, context=160)
    ids = [11, 3, 89, 7]
    logits = session.prefill(ids)
    for _ in range(N_GREEDY):
        ids.append(int(logits.argmax()))
        logits = session.decode(ids[-1])
    _, expected = hidden_states(model, ids)
    assert ids[4:] == expected[3:-1].argmax(axis=-1).tolist()
