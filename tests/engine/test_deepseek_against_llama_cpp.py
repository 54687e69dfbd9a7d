"""Synthetic DeepSeek files against llama.cpp, which computes with the same weights and no quantised activations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float32_file import in_float32
from tiny_models import make_tiny

from kbench.core import Placement
from kbench.engine import load_model
from kbench.kernels import implementations
from kbench.model import Mla, Moe, synthesize

# llama.cpp takes a model without compressed queries for V2-Lite by its 27 layers alone. V2's groups are left out:
# it ranks them by their best two experts as V3 does, where DeepSeek-V2 ranks them by their best.
SHAPES: dict[str, dict[str, Any]] = {
    "v2-lite": {"n_layers": 27, "mla": Mla(0, 256, 32, 64, 64), "moe": Moe(8, 3, 256, 2, 1, "softmax", 1, 1, False, 1)},
    "v2": {"moe": Moe(16, 4, 256, 2, 1, "softmax", 1, 1, False, 4.0)},
    "v3": {"moe": Moe(16, 4, 256, 1, 1, "sigmoid", 4, 2, True, 2.5)},
}
IDS = np.random.default_rng(1).integers(0, 300, 40).tolist()
NATIVE = [item.name for item in implementations() if item.name.startswith("cpu.") and item.runnable().ok]


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[Any]:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python, which takes minutes to build")
    import llama_cpp

    yield llama_cpp


def logits_of_llama_cpp(llama_cpp: Any, path: Path, ids: list[int]) -> np.ndarray:
    llama = llama_cpp.Llama(
        str(path), n_ctx=128, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False,
        flash_attn=False, type_k=0, type_v=0,
    )  # fmt: skip
    llama.eval(ids)
    logits = np.array(llama._scores[: len(ids)], np.float64)
    llama.close()
    return logits


def divergence(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Kullback-Leibler, in nats, for each token."""
    p, q = (x - x.max(axis=-1, keepdims=True) for x in (expected, found.astype(np.float64)))
    p, q = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (p, q))
    return (np.exp(p) * (p - q)).sum(axis=-1)


# float32 on both sides: logits of order one to 1e-5, so half of its square, and room. Two planes: logits to 2e-3, which
# is 2e-6; but of a few hundred routes some are ties, and a token with another expert may be off by 5e-3.
@pytest.mark.parametrize(
    ("quant", "median", "mean"), [("F32", 1e-9, 1e-9), ("Q8_0", 1e-4, 1e-3), ("Q4_K_M", 1e-4, 1e-3)]
)
@pytest.mark.parametrize("name", SHAPES)
def test_the_distribution_is_llama_cpps(
    llama_cpp: Any, tmp_path: Path, name: str, quant: str, median: float, mean: float
) -> None:
    path = tmp_path / f"{name}.gguf"
    synthesize(make_tiny("deepseek-v3" if name == "v3" else "deepseek2", quant, **SHAPES[name]), path)
    expected = logits_of_llama_cpp(llama_cpp, path if quant == "F32" else in_float32(path), IDS)
    for implementation in NATIVE[:1] or ["reference"]:
        placement = Placement(generate_op=implementation, prefill_op=implementation)
        session = load_model(path, default=placement, context=64, kv="f32", threads=1)
        found = [session.logits(IDS[:30]), *(session.decode(token)[None].copy() for token in IDS[30:])]
        apart = divergence(expected, np.concatenate(found))
        assert np.median(apart) <= median and apart.mean() <= mean, apart
