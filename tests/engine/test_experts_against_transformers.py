"""Mixtures of experts against Hugging Face transformers: float32 and native kernels, every way to feed the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_oracle import hidden_states, relative_error, write_gguf
from test_against_transformers import TOLERANCE, check_layers, load

from kbench.engine import Session
from kbench.kernels import implementations

NATIVE = [i.name for i in implementations() if i.name.startswith("cpu.") and i.runnable().ok]
# The files hold float32, which native kernels multiply as such; the cache is float32 too. Errors are the reference's.
IMPLEMENTATIONS = ["reference", "torch", *NATIVE]
MODELS = ["mixtral", "qwen2moe", "qwen3moe", "glm4moe", "glm4moe-air", "gpt-oss"]

Models = dict[str, tuple[Path, Any]]


@pytest.mark.parametrize("experts", ["split", "fused"])
def test_other_layouts_of_the_same_experts(tiny_models: Models, experts: str, tmp_path: Path) -> None:
    """To the last bit what the stacked file gives."""
    path, model = tiny_models["mixtral"]
    write_gguf(model, tmp_path / "m.gguf", "llama", experts=experts)
    ids = list(range(40))
    for implementation in ("reference", NATIVE[0]):
        expected = load(path, implementation).logits(ids)
        np.testing.assert_array_equal(load(tmp_path / "m.gguf", implementation).logits(ids), expected)


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
