"""DeepSeek-V2 and V3 against Hugging Face transformers: layer by layer, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deepseek_oracle import VARIANTS, VOCAB, write_deepseek
from hf_oracle import hidden_states, relative_error

from kbench.core import Placement
from kbench.engine import Session, load_model
from kbench.kernels import implementations

# Float32 against float32 in other orders: see test_against_transformers.
TOLERANCE = 1e-5
# Activations of a product in two int8 planes are off by 1e-4 of their norm. Some ten products lie on a layer's path;
# the softmax multiplies what is left in the scores by the scores, here of about five.
QUANTISED_LAYER_TOLERANCE = 2e-3

NATIVE = [item.name for item in implementations() if item.name.startswith("cpu.") and item.runnable().ok]
# The best instruction set and the plainest: the others are compared with these op by op.
RUN = ["reference", *dict.fromkeys((NATIVE[0], NATIVE[-1]))] if NATIVE else ["reference"]
IDS = np.random.default_rng(1).integers(0, VOCAB, 70).tolist()

Files = Callable[..., Path]


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Products of a few thousand numbers: a second thread only waits, at full speed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tiny_deepseeks: dict[str, tuple[Path, Any]]) -> dict[str, Any]:
    return {name: model for name, (_, model) in tiny_deepseeks.items()}


@pytest.fixture(scope="module")
def files(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("deepseek")

    def path_of(name: str, split: bool, quant: str = "F32") -> Path:
        path = folder / f"{name}-{split}-{quant}.gguf"
        if not path.exists():
            write_deepseek(models[name], path, split_kv_b=split, quant=quant)
        return path

    return path_of


def load(path: Path, implementation: str, **options: Any) -> Session:
    placement = Placement(generate_op=implementation, prefill_op=implementation)
    return load_model(path, default=placement, **{"kv": "f32", "context": 192, "threads": 1, **options})


@pytest.mark.parametrize("implementation", RUN)
@pytest.mark.parametrize("split", [False, True], ids=["kv_b", "k_b and v_b"])
@pytest.mark.parametrize("name", VARIANTS)
def test_layer_by_layer(models: dict[str, Any], files: Files, name: str, split: bool, implementation: str) -> None:
    layers, logits = hidden_states(models[name], IDS)
    values = load(files(name, split), implementation).trace(IDS)
    errors = [relative_error(values[f"model.layers.{i}"], h) for i, h in enumerate(layers)]
    assert len(errors) == 3 and max(*errors, relative_error(values["logits"], logits)) <= TOLERANCE, errors


@pytest.mark.parametrize("implementation", RUN)
@pytest.mark.parametrize("name", VARIANTS)
def test_prefill_in_chunks_then_decode(models: dict[str, Any], files: Files, name: str, implementation: str) -> None:
    """Chunks of 7 do not divide 40; attention sees the cache and the chunk at once."""
    _, expected = hidden_states(models[name], IDS)
    session = load(files(name, split=name == "v2"), implementation, chunk=7)
    assert relative_error(session.prefill(IDS[:40]), expected[39]) <= TOLERANCE
    for i in range(40, 70):
        assert relative_error(session.decode(IDS[i]), expected[i]) <= TOLERANCE


@pytest.mark.parametrize("split", [False, True], ids=["kv_b", "k_b and v_b"])
@pytest.mark.parametrize("name", VARIANTS)
def test_quantised_weights_on_native_kernels(files: Files, name: str, split: bool) -> None:
    """As far as both send tokens to the same experts: of two that tie, either may win, and what follows differs."""
    path = files(name, split, "Q8_0")
    expected = load(path, "reference").trace(IDS)
    for implementation in RUN[1:]:
        found = load(path, implementation).trace(IDS)
        routes = [[np.sort(v[f"model.layers.{i}.mlp.gate.ids"]) for i in (1, 2)] for v in (found, expected)]
        alike = (np.array(routes[0]) == np.array(routes[1])).all(axis=(0, 2))
        n = len(IDS) if alike.all() else int(np.argmin(alike))
        assert n >= 20, "ties are rare"
        errors = [relative_error(found[f"model.layers.{i}"][:n], expected[f"model.layers.{i}"][:n]) for i in range(3)]
        assert all(0 < error <= (i + 1) * QUANTISED_LAYER_TOLERANCE for i, error in enumerate(errors)), errors


@pytest.mark.parametrize(("kv", "rounding"), [("f16", 2.0**-12), ("bf16", 2.0**-9), ("q8_0", 2.0**-8)])
@pytest.mark.parametrize("implementation", RUN[:2])
def test_smaller_caches_of_latents(files: Files, kv: str, rounding: float, implementation: str) -> None:
    path = files("v2", True)
    full, small = load(path, implementation), load(path, implementation, kv=kv)
    # 64 elements of latent and 64 that rotate, in 3 layers; q8_0 has two bytes of scale for 32 elements.
    bits = {"f16": 16, "bf16": 16, "q8_0": 8.5}[kv]
    assert small.cache.n_bytes == small.report.kv_bytes == 192 * 3 * 128 * bits / 8
    # The first layer has no experts that a rounding could exchange; its attention sees rounded keys and values.
    first = [session.trace(IDS)["model.layers.0"] for session in (small, full)]
    assert 0 < relative_error(*first) <= 10 * rounding
