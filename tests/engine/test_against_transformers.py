"""Layer by layer against Hugging Face transformers, float32 on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_oracle import hidden_states, llama_from_gguf, relative_error

from kbench.core import Placement
from kbench.engine import Session, load_model

# Two float32 computations in different orders: each of some ten roundings a layer is 2^-24 = 6e-8 relative, and
# errors add up over the layers like a random walk: 6e-8 * sqrt(10 * 30) = 1e-6. Ten times that.
TOLERANCE = 1e-5

TEXT = "In 1492, Columbus sailed the ocean blue; what happened next came as a surprise."


def load(path: Path, implementation: str = "reference", **options: Any) -> Session:
    placement = Placement(generate_op=implementation, prefill_op=implementation)
    return load_model(path, default=placement, kv="f32", **options)


def check_layers(session: Session, model: Any, ids: list[int], tolerance: float) -> None:
    layers, logits = hidden_states(model, ids)
    values = session.trace(ids)
    errors = {f"layer {i}": relative_error(values[f"model.layers.{i}"], h) for i, h in enumerate(layers)}
    errors["logits"] = relative_error(values["logits"], logits)
    assert len(errors) == session.descriptor.n_layers + 1
    assert max(errors.values()) <= tolerance, errors


def test_smollm2_layer_by_layer(smollm2_path: Path) -> None:
    session = load(smollm2_path, context=64, chunk=32)
    check_layers(session, llama_from_gguf(smollm2_path), session.tokenizer.encode(TEXT), TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "llama3", "qwen2", "qwen3"])
def test_tiny_models_layer_by_layer(tiny_models: dict[str, tuple[Path, Any]], name: str) -> None:
    path, model = tiny_models[name]
    ids = np.random.default_rng(1).integers(0, 150, 70).tolist()
    check_layers(load(path), model, ids, TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_tiny_models_step_by_step(tiny_models: dict[str, tuple[Path, Any]], name: str) -> None:
    path, model = tiny_models[name]
    ids = np.random.default_rng(2).integers(0, 150, 40).tolist()
    session = load(path, chunk=8)
    _, expected = hidden_states(model, ids)
    assert relative_error(session.prefill(ids[:20]), expected[19]) <= TOLERANCE
    for i in range(20, 40):
        assert relative_error(session.decode(ids[i]), expected[i]) <= TOLERANCE
