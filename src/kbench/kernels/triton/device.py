"""``triton``: our kernels where there are some, and torch's calls for the rest, on tensors that stay on a device."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kbench.core import Attribute, Block, OpCall, Problem, quant

from ..block_parameters import BlockParameter
from ..implementation import YES, AnyArray, Prepared, StepState, Support, WeightData
from ..reference import clamp_of
from ..tolerance import QUANTS
from ..torch_baseline import TorchCache, TorchWeights
from . import step_device
from .block_tensor import BLOCK_TYPES, BlockTensor, block_tensor
from .expert_stack import ExpertLayer, expert_layer
from .experts import FEW_TOKENS, route, run_experts
from .parameters import tile_parameters, tile_rows
from .plane_matrix import PlaneMatrix, multiply, plane_matrix
from .planes import PLANE_FORMATS
from .step_device import StepDevice
from .tile import FEW_ROWS

if TYPE_CHECKING:
    import torch

NAME = "triton"


def interpreted() -> bool:
    """Whether Triton interprets kernels, on the CPU: for tests, thousands of times slower than a GPU."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


class TritonDevice(StepDevice):
    """Kernels of our own on torch device ``place``: ``cuda:N``, or ``cpu`` where Triton interprets them."""

    def __init__(self, place: str, dtype: str | None = None) -> None:
        super().__init__(place, dtype)
        self.name = NAME

    def accuracy(self, problem: Problem) -> str:
        few = {"linear": FEW_ROWS, "moe_experts": FEW_TOKENS}.get(problem.op)
        if few is not None and _in_planes(problem):
            return "f32" if problem.integer("tokens") <= few else "f16"
        return super().accuracy(problem)

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> TorchWeights:
        """Quantised matrices as planes of codes, or as stored where a type has none and for embeddings; everything
        else as ``torch`` has it."""
        if _in_blocks(problem):
            return self._blocks(problem, weights, block)
        if not _in_planes(problem):
            return super().prepare(problem, weights, block)
        if problem.op == "moe_experts":
            return TorchWeights((expert_layer(weights, problem.integer("experts"), self.place),))
        matrix = plane_matrix(weights[0].whole, weights[0].quant, problem.integer("k"), self.place)
        rest = super().prepare(problem, weights[1:], block) if weights[1:] else TorchWeights(())
        return TorchWeights((matrix, *rest.tensors))

    def stored_bytes(self, problem: Problem, quant_name: str, shape: Sequence[int]) -> int:
        if _in_planes(problem) and quant_name in PLANE_FORMATS:
            bits = PLANE_FORMATS[quant_name].bits_per_weight
        elif _in_blocks(problem) and quant_name in BLOCK_TYPES:
            bits = quant(quant_name).bits_per_weight
        else:
            return super().stored_bytes(problem, quant_name, shape)
        return math.ceil(math.prod(shape) * bits / 8)

    def _blocks(self, problem: Problem, weights: Sequence[WeightData], block: Block | None) -> TorchWeights:
        import torch

        dtype = torch.bfloat16 if self.accuracy(problem) == "bf16" else torch.float32
        matrices = weights[: 3 if problem.op == "moe_experts" else 1]
        biases = weights[len(matrices) :]
        rest = super().prepare(problem, biases, block) if biases else TorchWeights(())
        return TorchWeights((*(block_tensor(weight, self.place, dtype) for weight in matrices), *rest.tensors))

    def _linear(self, call: OpCall, w: Sequence[Any], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        if isinstance(w[0], PlaneMatrix):
            y = multiply(x[0], w[0], rows=tile_rows(call.block))
        elif isinstance(w[0], BlockTensor):
            import torch

            rows = x[0].to(w[0].dtype)
            parts = [torch.nn.functional.linear(rows, w[0][part]).float() for part in w[0].slices()]
            y = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        else:
            return super()._linear(call, w, x, s)
        return [y + w[1].reshape(-1) if len(w) > 1 else y]

    def _route(
        self, logits: torch.Tensor, top_k: int, attrs: Mapping[str, Attribute], bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return route(logits, top_k, attrs, bias)

    def _moe_experts(self, call: OpCall, w: Sequence[Any], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        if not isinstance(w[0], ExpertLayer):
            return super()._moe_experts(call, w, x, s)
        return [run_experts(x[0], x[1], x[2], w[0], clamp_of(call))]


def takes(problem: Problem) -> Support:
    """Whether one of our kernels does ``problem``, and why not."""
    if problem.op in step_device.OPS:
        return step_device.takes(problem)
    if problem.op == "moe_router":
        return YES  # torch multiplies, in float32, whatever the matrix is stored as
    if problem.op not in ("linear", "moe_experts", "embedding"):
        return Support(False, f"no Triton kernel for {problem.op}")
    for name in _types(problem):
        if name not in BLOCK_TYPES:
            return Support(False, f"no Triton kernel for {name}; there are {', '.join(BLOCK_TYPES)}")
    return YES


def _in_planes(problem: Problem) -> bool:
    return problem.op in ("linear", "moe_experts") and all(name in PLANE_FORMATS for name in _types(problem))


def _in_blocks(problem: Problem) -> bool:
    return problem.op in ("linear", "moe_experts", "embedding") and takes(problem).ok and not _in_planes(problem)


def _types(problem: Problem) -> list[str]:
    """Of the matrices."""
    return [problem.text(name) for name in QUANTS if problem.has(name)]


@functools.lru_cache(maxsize=32)
def triton_device(place: str) -> TritonDevice:
    """The one for torch device ``place``."""
    return TritonDevice(place)


class TritonImplementation:
    """``triton`` as implementations are listed, measured and compared: on the first GPU, from and to host memory."""

    name = NAME
    device_kind = "cuda"
    summary = "Triton kernels over GGUF's own numbers, in planes; float32 for few rows, float16 tensor cores for many"

    def runnable(self) -> Support:
        if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
            return Support(False, "triton is not installed; it comes with a CUDA build of torch")
        if interpreted():
            return YES
        import torch

        return YES if torch.cuda.is_available() else Support(False, "torch finds no CUDA device")

    def accuracy(self, problem: Problem) -> str:
        return self._device.accuracy(problem)

    def supports(self, problem: Problem) -> Support:
        return takes(problem)

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        cut = problem is None or (problem.op == "linear" and _in_planes(problem))
        return tile_parameters(problem) if cut else ()

    def capturable(self, problem: Problem) -> Support:
        """Our kernels read nothing on the host; what torch does with blocks, and for the rest, prompts among it, is
        torch's."""
        ours = takes(problem).ok and not _in_blocks(problem)
        ours = ours and (problem.op not in step_device.OPS or problem.integer("tokens") == 1)
        return YES if ours else self._device.capturable(problem)

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> TorchWeights:
        return self._device.prepare(problem, weights, block)

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        import torch

        device = self._device
        x = [torch.from_numpy(np.ascontiguousarray(a)).to(device.place) for a in inputs]
        there = device.caches_of(state)
        moved = StepState(state.tokens, state.position, there, state.spans)
        found = [y.cpu().numpy() for y in device.compute(call, prepared, x, moved)]
        for layer, cache in there.items():
            host = TorchCache.over(state.caches[layer])
            for sequence, position, rows in state.parts():
                made = cache.held(sequence, position, position + rows.stop - rows.start)
                host.put(sequence, position, [t.cpu() for t in made])
        return found

    @property
    def _device(self) -> TritonDevice:
        return triton_device("cpu" if interpreted() else "cuda:0")
