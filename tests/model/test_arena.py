"""The arena, by playing calls over a buffer that remembers whose bytes it holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_tiny

from kbench.core import CPU, Device, OpCall, Phase, Placement, Problem, Value
from kbench.model import lower, plan_arena

GPU = Device("cuda")


def play(calls: Sequence[OpCall], tokens: int, device: Device | None = None) -> int:
    """Runs ``calls``: every input must still be whole when it is read, and outputs must not touch inputs."""
    arena = plan_arena(calls, tokens, device)
    owner = np.zeros(arena.n_bytes, np.int32)
    spans: dict[str, slice] = {}
    numbers: dict[str, int] = {}
    for call in calls:
        if device is not None and call.device != device:
            for name in call.inputs:  # a transfer elsewhere reads from here
                if name in spans:
                    assert (owner[spans[name]] == numbers[name]).all(), name
            continue
        for value in call.outputs:
            rows = 1 if value.rows == "one" else tokens
            begin = arena.offsets[value.name]
            spans[value.name] = slice(begin, begin + 4 * rows * value.width)
            numbers[value.name] = len(numbers) + 1
            assert begin % 64 == 0
            assert spans[value.name].stop <= arena.n_bytes
            owner[spans[value.name]] = numbers[value.name]
        for name in call.inputs:
            if name in spans:
                assert (owner[spans[name]] == numbers[name]).all(), name
    read = {name for call in calls for name in call.inputs}
    for name in set(spans) - read:
        assert (owner[spans[name]] == numbers[name]).all(), f"{name} was overwritten before the end"
    return arena.n_bytes


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "deepseek2"])
@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_models(architecture: str, tokens: int) -> None:
    m = make_tiny(architecture)
    calls = lower(m, {}, Phase.PREFILL, tokens, tokens, resolve=lambda problem, device: "x")
    n_bytes = play(calls, tokens)
    apart = sum(4 * value.width * tokens for call in calls for value in call.outputs)
    assert n_bytes < apart / 3  # bytes are shared


def test_depth_costs_nothing() -> None:
    sizes = set()
    for n_layers in (2, 20):
        calls = lower(make_tiny(n_layers=n_layers), {}, Phase.PREFILL, 8, 8, resolve=lambda problem, device: "x")
        sizes.add(plan_arena(calls, 8).n_bytes)
    assert len(sizes) == 1


def test_one_arena_a_device() -> None:
    m = make_tiny("deepseek2")
    on_gpu = {
        f"model.layers.{i}.mlp.shared_experts.{p}_proj": Placement(GPU, "x") for i in range(3) for p in ("up", "down")
    }
    calls = lower(m, on_gpu, Phase.DECODE, 1, 9, resolve=lambda problem, device: "x")
    for device in (CPU, GPU):
        assert play(calls, 1, device) > 0
    names = {value.name for call in calls if call.device == GPU for value in call.outputs}
    assert set(plan_arena(calls, 1, GPU).offsets) == names


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_graph(data: st.DataObject) -> None:
    names: list[str] = []
    calls = []
    for index in range(data.draw(st.integers(1, 25))):
        inputs = data.draw(st.lists(st.sampled_from(names), max_size=3)) if names else []
        widths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=2))
        outputs = tuple(
            Value(f"v{index}.{i}", width, data.draw(st.sampled_from(["tokens", "one"])))
            for i, width in enumerate(widths)
        )
        problem = Problem.make("add", d=1, tokens=1)
        calls.append(OpCall("add", problem, "x", CPU, "m", tuple(inputs), outputs))
        names += [value.name for value in outputs]
    play(calls, 3)


def test_no_calls() -> None:
    assert plan_arena([], 1).n_bytes == 0
