"""Torch on tensors that stay on their device: within the bounds of the float64 truth, caches bit by bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from test_oracle import CASES, made

from kbench.core import OPS
from kbench.kernels import StepState, TorchCache, TorchDevice, implementation, op_spec

torch = pytest.importorskip("torch")
# One case an op and cache type; all of them are `torch`'s on arrays already.
_CASES = {f"{key.partition('(')[0]} {attrs} {key.partition('kv=')[2][:4]}": (key, attrs, b) for key, attrs, b in CASES}


@pytest.mark.parametrize("case", [case for case in _CASES.values() if not case[0].startswith("transfer")])
def test_on_tensors_of_the_device(case: tuple[str, dict[str, Any], bool]) -> None:
    here = made(*case)
    item = TorchDevice("cpu", "f32")
    prepared = item.prepare(here.call.problem, here.weights)
    caches = {layer: TorchCache.over(cache) for layer, cache in here.state.caches.items()}
    state = StepState(here.state.tokens, here.state.position, caches)  # type: ignore[arg-type]
    before = {layer: (cache.k.copy(), cache.v.copy()) for layer, cache in here.state.caches.items()}
    inputs = [torch.from_numpy(np.array(a)) for a in here.inputs]
    outputs = [t.numpy() for t in item.compute(here.call, prepared, inputs, state)]
    written = {layer: (cache.k.copy(), cache.v.copy()) for layer, cache in here.state.caches.items()}
    for layer, (k, v) in before.items():
        here.state.caches[layer].k[...], here.state.caches[layer].v[...] = k, v
    judged = op_spec(here.call.op).check(item, here, outputs)
    assert judged.ok, judged.reason
    # The cache afterwards is, bit by bit, what the array implementation makes of it.
    again = dataclasses.replace(here.state, caches=here.state.caches)
    for layer, (k, v) in before.items():
        here.state.caches[layer].k[...], here.state.caches[layer].v[...] = k, v
    arrays = implementation("torch")
    arrays.run(here.call, arrays.prepare(here.call.problem, here.weights), here.inputs, again, 1)
    for layer, (k, v) in written.items():
        np.testing.assert_array_equal(here.state.caches[layer].k.view(np.uint8), k.view(np.uint8))
        np.testing.assert_array_equal(here.state.caches[layer].v.view(np.uint8), v.view(np.uint8))


def test_every_op_has_a_case() -> None:
    assert {key.partition("(")[0] for key, _, _ in _CASES.values()} == set(OPS)


def test_an_empty_cache_has_the_arrays_shape() -> None:
    cache = TorchCache.empty("q8_0", 2, 5, 64, 0, "cpu")
    assert cache.k.shape == (1, 2, 5, 68) and cache.v.shape == (1, 2, 5, 0) and cache.n_bytes == 2 * 5 * 68
