"""Experts of the CPU added one layer later: exactly what the definition says, and only where it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import make_tiny

from kbench.core import CPU, Device, OpCall, Phase, Placement
from kbench.engine import KvCache, Session, load_model
from kbench.engine.plan_check import beside, plan_errors
from kbench.engine.planned import PlannedExecutable
from kbench.kernels import StepState, implementation
from kbench.model import build_tree, describe_gguf, lower, open_gguf, synthesize

GPU = Device("cuda", 0)
ARCHITECTURES = ("deepseek2", "qwen3moe", "qwen2moe")  # shared experts; none; some that are weighed


@pytest.fixture(scope="module", params=ARCHITECTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deferral") / f"{request.param}.gguf"
    synthesize(make_tiny(request.param, "Q8_0"), path, seed=4)
    return path


def hybrid(module: str) -> Placement:
    device, op = (CPU if module.endswith((".experts", "embed_tokens")) else GPU), "reference"
    return Placement(device, op, device, op)


def load(path: Path, **options: Any) -> Session:
    places = {m.name: hybrid(m.name) for m in build_tree(describe_gguf(open_gguf(path))).walk()}
    options = {"kv": "f32", "context": 32, "chunk": 16, "threads": 1, "alias": {GPU: CPU}} | options
    return load_model(path, places, **options)


def by_definition(session: Session, tokens: list[int]) -> np.ndarray:
    """Logits after ``tokens``, call by call of the exact step: an expert call gives what the one before it made, the
    first nothing, and the last its own besides."""
    calls = lower(
        session.descriptor, {m.name: Placement(CPU, "reference", CPU, "reference")
                             for m in build_tree(session.descriptor).walk()},
        Phase.DECODE, 1, 32, kv="f32", resolve=lambda *_: "reference",
    )  # fmt: skip
    store, item = session.weights, implementation("reference")
    experts = [call for call in calls if call.op == "moe_experts"]
    store.prepare(calls)
    state = StepState(np.zeros(0, np.int32), 0, KvCache(session.descriptor, session.cache.shape, "f32").caches)
    for position, token in enumerate(tokens):
        state.place(np.array([token], np.int32), np.array([(0, position, 1)], np.int64))
        values: dict[str, Any] = {"$tokens": state.tokens}
        held: Any = None
        for call in calls:
            results = item.run(call, store.of(call), [values[name] for name in call.inputs], state, 1)
            if call.op == "moe_experts":
                made, before = results[0], held if held is not None else np.zeros_like(results[0])
                held, results = made, [before + made if call is experts[-1] else before]
            values |= {value.name: result for value, result in zip(call.outputs, results, strict=True)}
    return np.asarray(values["logits"][0])


def test_deferred_is_what_the_definition_says(path: Path) -> None:
    session, tokens = load(path, defer_experts=True), [5, 17, 3, 99]
    for token in tokens:
        logits = session.decode(token).copy()
    right = by_definition(load(path, graph=False), tokens)
    np.testing.assert_allclose(logits, right, rtol=1e-4, atol=1e-4)
    exact = load(path)
    for token in tokens:
        plain = exact.decode(token).copy()
    assert np.abs(plain - right).max() > 1e-2  # it is not exact, and this test would see it


def test_the_gpu_goes_on_while_deferred_experts_run(path: Path) -> None:
    """Attention of the next layer runs beside them; without deferral it waits for them."""

    def attention_beside_experts(session: Session) -> bool:
        program = session._decode
        assert isinstance(program, PlannedExecutable)
        assert plan_errors(program.plan) == []
        names: dict[int, OpCall] = {item.number: item.call for item in program._items if item.what == "compute"}
        ops = [[{names[n].op for n in one.calls} for one in pair] for pair in beside(program.plan)]
        return any("moe_experts" in a | b and (a | b) & {"attention", "mla_attention"} for a, b in ops)

    assert attention_beside_experts(load(path, defer_experts=True))
    assert not attention_beside_experts(load(path))


def test_prefill_and_experts_of_a_gpu_are_exact(path: Path) -> None:
    prompt = [5, 17, 3, 99, 7]
    np.testing.assert_array_equal(load(path, defer_experts=True).prefill(prompt), load(path).prefill(prompt))
    model = describe_gguf(open_gguf(path))
    places = {m.name: Placement(GPU, "torch", GPU, "torch") for m in build_tree(model).walk()}
    steps = [
        lower(model, places, Phase.DECODE, 1, 32, defer_experts=defer, resolve=lambda *_: "torch")
        for defer in (False, True)
    ]
    assert steps[0] == steps[1]
