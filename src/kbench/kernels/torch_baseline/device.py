"""``torch`` on a device of its own: weights, caches and values stay there; nothing but torch calls in between."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kbench.core import Attribute, Block, OpCall, Problem

from ..implementation import Prepared, StepState, WeightData
from ..reference import Tensor, router_biases
from . import captured
from .cache import TorchCache
from .implementation import TorchImplementation, TorchWeights
from .route import route

if TYPE_CHECKING:
    import torch


class ResidualNorm(Protocol):
    """``total = x + y`` and ``out``, the norm of it with the ``prepared`` weights: float32 ``[tokens, d]``, of which
    the last two share no bytes with any."""

    def __call__(
        self, prepared: Prepared, x: torch.Tensor, y: torch.Tensor, total: torch.Tensor, out: torch.Tensor
    ) -> None: ...


class TorchDevice(TorchImplementation):
    """The calls of ``torch`` on tensors that lie on torch device ``place`` (``cuda:1``, or ``cpu``).

    ``dtype`` as for ``TorchImplementation``; by default bf16 on CUDA: tensor cores multiply it natively, and flash
    attention knows nothing wider.
    """

    def __init__(self, place: str, dtype: str | None = None) -> None:
        super().__init__(dtype or ("bf16" if place.startswith("cuda") else None))
        self.place, self.halves = place, place.startswith("cuda")

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> TorchWeights:
        """As tensors on the device; an embedding too, in float32, unless that is the host's own memory."""
        if problem.op != "embedding" or self.place == "cpu":
            return super().prepare(problem, weights, block)
        import torch

        rows = Tensor(weights[0], keep=False)
        out = torch.empty(weights[0].shape[::-1], dtype=torch.float32, device=self.place)
        step = max(1, (4 << 20) // weights[0].shape[0])
        for start in range(0, len(out), step):
            ids = range(start, min(start + step, len(out)))
            out[start : start + step] = torch.from_numpy(rows.rows(ids))
        return TorchWeights((out,))

    def stored_bytes(self, problem: Problem, quant_name: str, shape: Sequence[int]) -> int:
        """Bytes that a tensor of ``shape`` takes on the device as a weight of ``problem``."""
        vector = problem.op == "embedding" or len(shape) == 1
        return (4 if vector or self.accuracy(problem) == "f32" else 2) * math.prod(shape)

    def caches_of(self, state: StepState) -> dict[int, Any]:
        """The caches of ``state``, which lie in host memory, on the device, as calls there read them best."""
        host = {layer: TorchCache.over(cache) for layer, cache in state.caches.items()}
        return {n: TorchCache(c.k.to(self.place), c.v.to(self.place), c.kv) for n, c in host.items()}

    def compute(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[torch.Tensor], state: StepState
    ) -> list[torch.Tensor]:
        """One call's outputs, float32 (ids int32), on the device; ``state.caches`` hold ``TorchCache``s or
        ``PagedCache``s of the device.

        On CUDA it is queued on the current stream, and values that decide what is queued (which experts) are waited
        for; with ``state.on_device`` nothing is, of what is ``capturable``.
        """
        import torch

        assert isinstance(prepared, TorchWeights)
        with torch.inference_mode():
            if call.op == "embedding":
                (rows,) = prepared.tensors
                if isinstance(rows, Tensor):
                    return [torch.from_numpy(rows.rows(state.tokens))]
                if state.on_device is not None:
                    return [rows[state.on_device.tokens]]
                return [rows[torch.from_numpy(state.tokens).to(self.place)]]
            y: list[Any] = getattr(self, f"_{call.op}")(call, prepared.tensors, inputs, state)
            return [t if t.dtype == torch.int32 else t.float() for t in y]

    def residual_norm(self, norm: OpCall) -> ResidualNorm | None:
        """What does a sum and the ``norm`` of it with one kernel; None: nothing, as in torch."""
        return None

    def _turns(
        self, call: OpCall, w: Sequence[torch.Tensor], device: torch.device, state: StepState
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        step = state.on_device
        if step is None:
            return super()._turns(call, w, device, state)
        name = call.outputs[0].name
        if name not in step.constants:  # they come from host memory: before a capture, not in it
            step.constants[name] = super()._turns(call, w, device, state)[1:]
        inv_freq, factor = step.constants[name]
        return step.positions.float(), inv_freq, factor

    def _attention(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], state: StepState
    ) -> list[Any]:
        if state.on_device is None:
            return super()._attention(call, w, x, state)
        return captured.attention(call, w, x, state, state.on_device)

    def _mla_attention(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], state: StepState
    ) -> list[Any]:
        if state.on_device is None:
            return super()._mla_attention(call, w, x, state)
        return captured.mla_attention(call, x, state, state.on_device)

    def _moe_router(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], _: StepState
    ) -> list[Any]:
        import torch

        biases = router_biases(call, w)
        logit_bias, bias = (None if found is None else found.reshape(-1) for found in biases)
        logits = torch.nn.functional.linear(x[0], w[0].float(), logit_bias)
        return list(self._route(logits, call.problem.integer("top_k"), call.attrs, bias))

    def _route(
        self, logits: torch.Tensor, top_k: int, attrs: Mapping[str, Attribute], bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return route(logits, top_k, attrs, bias)


@functools.lru_cache(maxsize=32)
def torch_device(place: str) -> TorchDevice:
    """The one for torch device ``place``."""
    return TorchDevice(place)
