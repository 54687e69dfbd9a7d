"""KTransformers' CPU kernels (package ``kt-kernel``): its layer of routed experts on GGUF blocks.

Set up as its own wrapper of GGUF weights does it: ``MOE``, bfloat16 in and out, submitted to its worker pool and waited
for. The submitting thread spins meanwhile, so that ``threads`` workers are ``threads + 1`` busy threads.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbench.core import Block, OpCall, Problem

from ..block_parameters import BlockParameter
from ..implementation import YES, AnyArray, Prepared, StepState, Support, WeightData

INSTALL = "pip install --no-deps kt-kernel"
# What its GGUF kernels take; others it would misread.
_TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "F16", "BF16")
# Its blocks of activations, 256 numbers, must fill rows.
_BLOCK = 256
_MIN_TOKENS = 32


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Its C++ prints about itself."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@dataclass(slots=True)
class _Experts:
    """One layer's weights as stored, and the layer that was made of them, for a number of threads and tokens."""

    problem: Problem
    weights: tuple[WeightData, ...]
    made: tuple[int, int, int] | None = None
    engine: Any = None
    layer: Any = None
    kept: Any = None

    @property
    def n_bytes(self) -> int:
        return sum(weight.raw.size for weight in self.weights)


class KtCall:
    """A call whose inputs are there: write them, step as often as wanted, read the output."""

    def __init__(self, experts: _Experts) -> None:
        # What the layer points into, its mask and the weights, has to live as long.
        self._engine, self._layer, self._kept = experts.engine, experts.layer, (experts.kept, experts.weights)
        self._tensors: tuple[Any, ...] = ()

    def write(self, inputs: Sequence[AnyArray], state: StepState) -> None:
        import torch

        x, ids, scores = inputs
        rows = torch.from_numpy(np.ascontiguousarray(x, np.float32)).to(torch.bfloat16)
        self._tensors = (
            torch.tensor([len(ids)], dtype=torch.int32),
            torch.from_numpy(np.ascontiguousarray(ids, np.int64)),
            torch.from_numpy(np.ascontiguousarray(scores, np.float32)),
            rows,
            torch.zeros_like(rows),
        )

    def step(self) -> None:
        count, ids, *others = self._tensors
        places = (tensor.data_ptr() for tensor in (ids, *others))
        self._engine.submit(self._layer.forward_task(count.data_ptr(), ids.shape[1], *places, False))
        self._engine.sync()

    def read(self) -> list[AnyArray]:
        return [self._tensors[-1].float().numpy()]


class KtExperts:
    """Implementation ``kt``: ``moe_experts`` alone."""

    name = "kt"
    device_kind = "cpu"
    summary = "KTransformers' CPU kernels: routed experts on GGUF blocks"

    def runnable(self) -> Support:
        if importlib.util.find_spec("kt_kernel") is None:
            return Support(False, f"kt-kernel is not installed ({INSTALL})")
        try:
            with _stdout_to_stderr():
                importlib.import_module("kt_kernel")
        except Exception as error:  # its import picks and loads a native variant: anything may go wrong
            return Support(False, f"kt-kernel does not load: {type(error).__name__}: {error}")
        return YES

    def supports(self, problem: Problem) -> Support:
        if problem.op != "moe_experts":
            return Support(False, f"its GGUF kernels are routed experts, not {problem.op}")
        for name in ("quant_gate", "quant_up", "quant_down"):
            if problem.text(name) not in _TYPES:
                return Support(False, f"{name} {problem.text(name)}: it takes {', '.join(_TYPES)}")
        for name in ("n", "k"):
            if problem.integer(name) % _BLOCK:
                return Support(False, f"{name} {problem[name]} is no multiple of {_BLOCK}")
        return YES

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        return ()

    def accuracy(self, problem: Problem) -> str:
        """Activations in int8 with one scale for 256, bfloat16 in and out."""
        return "int8k"

    def capturable(self, problem: Problem) -> Support:
        return Support(False, "it is driven from Python")

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> Prepared:
        whole = [WeightData(w.name, w.quant, w.shape, np.ascontiguousarray(w.whole)) for w in weights]
        return _Experts(problem, tuple(whole))

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        one = self.recorded(call, prepared, state, threads)
        one.write(inputs, state)
        one.step()
        return one.read()

    def recorded(self, call: OpCall, prepared: Prepared, state: StepState, threads: int) -> KtCall:
        """As of our own kernels: benchmarks time ``KtCall.step``, which leaves out conversions and copies."""
        assert isinstance(prepared, _Experts)
        self._make(prepared, threads, max(len(state.tokens), _MIN_TOKENS), prepared.problem.integer("top_k"))
        return KtCall(prepared)

    def _make(self, prepared: _Experts, threads: int, tokens: int, top_k: int) -> None:
        if prepared.made == (threads, tokens, top_k):
            return
        import torch
        from gguf import GGMLQuantizationType

        kt_kernel = importlib.import_module("kt_kernel")
        native = kt_kernel.kt_kernel_ext
        problem = prepared.problem
        experts, n, k = (problem.integer(name) for name in ("experts", "n", "k"))
        with _stdout_to_stderr():
            pool = native.WorkerPoolConfig()
            pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [threads]
            engine = native.CPUInfer(pool)
            mask = torch.zeros(experts, dtype=torch.bool)
            config = native.moe.MOEConfig(experts, top_k, k, n, mask.data_ptr())
            config.layer_idx, config.pool = 0, engine.backend_
            config.m_block, config.group_min_len = 32, 10
            config.max_len = config.group_max_len = tokens
            for name, weight in zip(("gate", "up", "down"), prepared.weights, strict=True):
                setattr(config, f"{name}_proj", weight.raw.ctypes.data)
                setattr(config, f"{name}_type", GGMLQuantizationType[weight.quant].value)
            config.hidden_type = native.kvcache.ggml_type.BF16
            layer = native.moe.MOE(config)
            identity = torch.arange(experts, dtype=torch.int32)
            engine.submit(layer.load_weights_task(identity.data_ptr()))
            engine.sync()
        prepared.engine, prepared.layer, prepared.kept = engine, layer, (config, mask, identity)
        prepared.made = (threads, tokens, top_k)
