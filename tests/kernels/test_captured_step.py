"""What says that a CUDA graph can hold it: recorded once and replayed, it does at every later position what it should.

A recording of torch's operations stands for the graph: each is done again on the same tensors, and what the host did
between them is not done again. So a position, a length or a choice of experts that the host looked at stays what it was
when it was recorded, as in a graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kbench.core import Problem
from kbench.kernels import (
    PAGE_TOKENS,
    DeviceStep,
    PagePool,
    StepState,
    TorchCache,
    TorchDevice,
    example,
    implementation,
    planned_on_gpu,
)

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


class HostLooked(Exception):
    pass


class Recording(TorchDispatchMode):  # type: ignore[misc]
    """Operations as they are done; ``replay`` does them again, into the same tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        looks = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        if looks & set(func.tags):
            raise HostLooked(str(func))
        out = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.done:
            tensors = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
            results = [t for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
            shared = {t.untyped_storage().data_ptr() for t in tensors}
            mutates = func._schema.is_mutable
            if not mutates and results and all(t.untyped_storage().data_ptr() in shared for t in results):
                continue  # a view: what it shows is made already
            with torch.inference_mode():
                again = torch.utils._pytree.tree_leaves(func(*args, **kwargs))
                if not mutates:
                    for old, new in zip(results, [t for t in again if isinstance(t, torch.Tensor)], strict=True):
                        old.copy_(new)


ONE_TOKEN = [
    "attention(heads=4,kv_heads=2,d=32,kv=f32,tokens=1,context=24)",
    "attention(heads=4,kv_heads=4,d=32,kv=q8_0,tokens=1,context=24)",
    "attention(heads=4,kv_heads=2,d=32,kv=f16,tokens=1,context=24,window=7)",
    "mla_attention(heads=4,kv_lora=64,rope=32,kv=bf16,tokens=1,context=24)",
    "mla_attention(heads=4,kv_lora=64,rope=32,kv=f32,tokens=1,context=24,window=9)",
    "rope(heads=4,d=16,tokens=1)",
    "linear(quant=Q8_0,n=64,k=64,tokens=1)",
    "head_linear(heads=2,n=32,k=32,quant=F16,tokens=1)",
    "rms_norm(d=64,rows=1,tokens=1)",
    "silu_mul(n=64,tokens=1)",
    "add(d=64,tokens=1)",
    "gated_add(d=64,tokens=1)",
    "moe_router(experts=8,top_k=2,k=64,quant=F32,tokens=1)",
    "expert_map(experts=8,here=6,top_k=2,tokens=1)",
    "top_logits(vocab=64,top_k=4,tokens=1)",
]
CAPACITY = 32


def caches(problem: Problem, capacity: int = CAPACITY) -> dict[int, TorchCache]:
    if not problem.has("kv"):
        return {}
    return {0: TorchCache.empty(problem.text("kv"), *widths(problem, capacity), "cpu")}


def widths(problem: Problem, capacity: int) -> tuple[int, int, int, int]:
    """Heads, slots, and the elements of what is cached."""
    if problem.op == "attention":
        return problem.integer("kv_heads"), capacity, problem.integer("d"), problem.integer("d")
    return 1, capacity, problem.integer("kv_lora") + problem.integer("rope"), 0


def pages(problem: Problem) -> PagePool:
    """Two for the sequence, out of five, that hold no numbers."""
    pool = PagePool.on("cpu", 5, 1, CAPACITY_IN_PAGES // PAGE_TOKENS, "cache")
    heads, _, k, v = widths(problem, CAPACITY_IN_PAGES)
    made = pool.add(0, problem.text("kv"), heads, k, v)
    for stored in (made.k, made.v):
        stored.fill_(255 if stored.dtype == torch.uint8 else float("nan"))
    return pool


CAPACITY_IN_PAGES = 2 * PAGE_TOKENS
CASES = [(key, False) for key in ONE_TOKEN] + [(key, True) for key in ONE_TOKEN if "kv=" in key]


@pytest.mark.parametrize(("key", "paged"), CASES)
def test_a_recorded_call_is_right_at_later_positions(key: str, paged: bool) -> None:
    """In pages, too, that come when a position needs them, between replays, and may hold anything."""
    problem = Problem.parse(key)
    rng = np.random.default_rng(3)
    made = example(problem, rng)
    call = made.call
    if "layer" in call.attrs:
        call = type(call)(**{**{f: getattr(call, f) for f in call.__slots__}, "attrs": {**call.attrs, "layer": 0}})
    item = TorchDevice("cpu", "f32")
    assert item.capturable(problem).ok
    prepared = item.prepare(problem, made.weights)
    step = DeviceStep.on("cpu")
    inputs = [torch.from_numpy(np.array(x)) for x in made.inputs]
    pool = pages(problem) if paged else None
    capacity = CAPACITY_IN_PAGES if paged else CAPACITY
    cached: Any = caches(problem, capacity) if pool is None else pool.caches
    here: Any = StepState(np.zeros(1, np.int32), 0, cached, on_device=step)
    there: Any = StepState(np.zeros(1, np.int32), 0, caches(problem, capacity))
    recorded, outputs = Recording(), []
    # Without a window as far as there is room, or over the border of two pages; with one until the ring went around.
    window = problem.integer("window") if problem.has("window") else 0
    positions = range(capacity + 12 if window else 70 if paged else 26)
    for position in positions:
        for x in inputs:
            if x.dtype == torch.float32:
                x.copy_(torch.from_numpy(rng.standard_normal(x.shape, np.float32)))
        if pool is not None:
            pool.write([(0, position, position + 1)])
        step.write(np.array([5], np.int32), position)
        step.bring()
        if position < 2:  # what a graph's warm-up does
            outputs = item.compute(call, prepared, inputs, here)
        elif position == 2:
            with recorded:
                outputs = item.compute(call, prepared, inputs, here)
        else:
            recorded.replay()
        there.place(np.array([5], np.int32), np.array([(0, position, 1)], np.int64))
        right = item.compute(call, prepared, inputs, there)
        for found, wanted in zip(outputs, right, strict=True):
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)
    for layer, cache in here.caches.items():
        begin = max(0, len(positions) - capacity)
        for mine, wanted in zip(
            cache.held(0, begin, len(positions)), there.caches[layer].held(0, begin, len(positions)), strict=True
        ):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=0)


def test_experts_that_the_host_looks_at_are_no_part_of_a_graph() -> None:
    problem = Problem.parse(
        "moe_experts(experts=4,top_k=2,n=32,k=32,quant_gate=F32,quant_up=F32,quant_down=F32,tokens=1)"
    )
    item, made = TorchDevice("cpu", "f32"), example(problem, np.random.default_rng(3))
    verdict = item.capturable(problem)
    assert not verdict.ok and "which experts" in verdict.reason
    inputs = [torch.from_numpy(np.array(x)) for x in made.inputs]
    with pytest.raises(HostLooked), Recording():
        item.compute(made.call, item.prepare(problem, made.weights), inputs, made.state)


def test_who_can_be_captured() -> None:
    linear = Problem.parse("linear(quant=Q4_K,n=256,k=256,tokens=1)")
    several = Problem.parse("rope(heads=4,d=16,tokens=3)")
    assert planned_on_gpu(linear) == "triton" and implementation("triton").capturable(linear).ok
    assert not implementation("torch").capturable(several).ok
    assert not implementation("reference").capturable(linear).ok
