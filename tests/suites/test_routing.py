"""Visits to experts against the routers of Hugging Face transformers, on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbench.core import Placement, Unsupported, UserError
from kbench.engine import Session, load_model
from kbench.suites import random_tokens, record_routing, text_name

Models = dict[str, tuple[Path, Any]]
MODELS = ["mixtral", "qwen2moe", "qwen3moe", "glm4moe", "gpt-oss"]
CONTEXT = 64


def load(path: Path, implementation: str = "reference", **options: Any) -> Session:
    placement = Placement(generate_op=implementation, prefill_op=implementation)
    return load_model(path, default=placement, kv="f32", context=CONTEXT, **options)


def chosen_by_transformers(model: Any, ids: list[int]) -> dict[int, np.ndarray]:
    """By layer, the experts of each token: the largest of the router's scores, with its correction where it has one."""
    torch = pytest.importorskip("torch")
    logits: dict[int, Any] = {}
    corrections: dict[int, Any] = {}
    hooks = []
    for number, layer in enumerate(model.model.layers):
        router = getattr(layer.mlp, "gate", getattr(layer.mlp, "router", None))
        if router is None or not hasattr(layer.mlp, "experts"):
            continue
        corrections[number] = getattr(router, "e_score_correction_bias", None)

        def keep(module: Any, inputs: Any, _output: Any, number: int = number) -> None:
            x = inputs[0].reshape(-1, inputs[0].shape[-1])
            logits[number] = torch.nn.functional.linear(x, module.weight, getattr(module, "bias", None))

        hooks.append(router.register_forward_hook(keep))
    try:
        with torch.no_grad():
            model(torch.tensor([ids]))
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for number, scores in logits.items():
        if corrections[number] is not None:
            scores = scores.sigmoid() + corrections[number]
        found[number] = scores.topk(model.config.num_experts_per_tok, dim=-1).indices.numpy()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_visits_are_those_of_transformers(tiny_models: Models, name: str) -> None:
    path, model = tiny_models[name]
    ids = random_tokens(150, 150)
    expected: dict[int, np.ndarray] = {}
    for begin in range(0, len(ids), CONTEXT):
        for layer, chosen in chosen_by_transformers(model, ids[begin : begin + CONTEXT]).items():
            expected[layer] = expected.get(layer, 0) + np.bincount(chosen.ravel(), minlength=7)
    told: list[tuple[int, int]] = []
    found = record_routing(load(path, chunk=24), ids, "random:1", CONTEXT, lambda done, of: told.append((done, of)))
    assert {layer: list(counts) for layer, counts in found.visits.items()} == {k: list(v) for k, v in expected.items()}
    assert set(found.visits) == ({1, 2} if name == "glm4moe" else {0, 1, 2})
    assert (found.experts, found.top_k, found.tokens) == (7, 3, 150)
    assert told[-1] == (150, 150) and len(told) == 7  # chunks of 24 in windows of 64, 64 and 22


def test_native_kernels_route_alike(tiny_models: Models) -> None:
    path, _ = tiny_models["qwen3moe"]
    ids = random_tokens(150, 120)
    one, other = (record_routing(load(path, name), ids, "random:1", CONTEXT) for name in ("reference", "auto"))
    differ = sum(
        abs(a - b) for layer in one.visits for a, b in zip(one.visits[layer], other.visits[layer], strict=True)
    )
    # Two experts that score alike to the last digits may change places.
    assert differ <= 2 and len(one.visits) == 3


def test_what_is_read_of_a_value_is_what_the_router_wrote(tiny_models: Models) -> None:
    """Kept in a program whose other values share bytes, against a trace in which none do."""
    session = load(tiny_models["mixtral"][0])
    ids = random_tokens(150, 30)
    kept = session.experts(ids)
    assert session.cached_ids == tuple(ids)
    session.reset()
    traced = session.trace(ids)
    assert len(kept) == 3
    for router, chosen in kept.items():
        np.testing.assert_array_equal(chosen, traced[f"{router}.ids"])


def test_what_cannot_be_recorded(tiny_models: Models) -> None:
    dense, routed = (load(tiny_models[name][0]) for name in ("llama", "mixtral"))
    with pytest.raises(Unsupported, match="no routed experts"):
        record_routing(dense, [1, 2], "random:1", CONTEXT)
    with pytest.raises(Unsupported, match="no routers"):
        dense.experts([1, 2])
    with pytest.raises(UserError, match="no tokens"):
        record_routing(routed, [], "random:1", CONTEXT)


def test_names_of_texts() -> None:
    assert text_name("a") == "sha256:ca978112ca1b" != text_name("b")  # sha256sum of one letter
    assert random_tokens(100, 5) == random_tokens(100, 5) and max(random_tokens(100, 500)) < 100
