"""What a step is made of besides products, on our kernels: attention of decode, norms, rotations, gates, sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbench.core import OpCall, Problem

from ..cache import check_room
from ..implementation import YES, Prepared, StepState, Support
from ..rope import rope_frequencies
from ..torch_baseline import PagedCache, ResidualNorm, TorchCache, TorchDevice, TorchWeights, in_pages
from . import attention, sampling, small_ops
from .places import places

if TYPE_CHECKING:
    import torch

_ATTENTION = ("attention", "mla_attention")
# Operation -> the parameter that says how long its vectors are, which one program holds.
_VECTORS = {"rms_norm": "d", "gated_add": "d", "rope": "d"}
OPS = (*_ATTENTION, *_VECTORS, "silu_mul", "add", "top_logits")


def takes(problem: Problem) -> Support:
    """Whether ``StepDevice`` has a kernel for ``problem``, one of ``OPS``, and why not."""
    op = problem.op
    if op in _ATTENTION:
        kv = problem.text("kv")
        if kv not in attention.KV_TYPES:
            return Support(False, f"no Triton kernel for a cache of {kv}; there are {', '.join(attention.KV_TYPES)}")
        if op == "attention":
            fits = problem.integer("d") <= attention.MAX_HEAD
        else:
            fits = problem.integer("kv_lora") <= attention.MAX_LATENT and problem.integer("rope") <= attention.MAX_HEAD
        return YES if fits else Support(False, f"vectors too long for a Triton kernel: {problem.key}")
    if op in _VECTORS and problem.integer(_VECTORS[op]) > small_ops.MAX_VECTOR:
        return Support(False, f"no Triton kernel for vectors of more than {small_ops.MAX_VECTOR}")
    if op == "top_logits" and problem.integer("top_k") > sampling.MAX_CANDIDATES:
        return Support(False, f"no Triton kernel for more than {sampling.MAX_CANDIDATES} candidates")
    return YES


class StepDevice(TorchDevice):
    """``TorchDevice`` with those kernels. What they do not take is torch's: prompts, long vectors, other caches."""

    def __init__(self, place: str, dtype: str | None = None) -> None:
        super().__init__(place, dtype)
        # By what decides them; with the weights that they were made of, which must not be taken for others.
        self._frequencies: dict[Any, tuple[torch.Tensor, float, Sequence[torch.Tensor]]] = {}

    def accuracy(self, problem: Problem) -> str:
        if problem.op in _ATTENTION and takes(problem).ok:
            return problem.text("kv")
        return super().accuracy(problem)

    def _rms_norm(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        d = call.problem.integer("d")
        if not takes(call.problem).ok:
            return super()._rms_norm(call, w, x, s)
        rows = x[0].reshape(-1, int(call.attrs.get("row_width", d)))  # type: ignore[arg-type]
        eps = float(call.attrs.get("eps", 1e-6))  # type: ignore[arg-type]
        return [small_ops.rms_norm(rows, w[0], eps)[1].reshape(x[0].shape)]

    def residual_norm(self, norm: OpCall) -> ResidualNorm | None:
        if not takes(norm.problem).ok:
            return None
        eps = float(norm.attrs.get("eps", 1e-6))  # type: ignore[arg-type]

        def add_and_norm(
            prepared: Prepared, x: torch.Tensor, y: torch.Tensor, total: torch.Tensor, out: torch.Tensor
        ) -> None:
            import torch

            assert isinstance(prepared, TorchWeights)
            with torch.inference_mode():
                small_ops.rms_norm(x, prepared.tensors[0], eps, y, (total, out))

        return add_and_norm

    def _rope(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        if not takes(call.problem).ok:
            return super()._rope(call, w, x, s)
        frequencies, factor = self._turning(call, w)
        return [
            small_ops.rope(
                x[0], frequencies, places(s, self.place).positions, factor, heads=call.problem.integer("heads"),
                neox=call.attrs.get("mode") == "neox", first=call.attrs.get("part") == "first",
            )
        ]  # fmt: skip

    def _turning(self, call: OpCall, w: Sequence[torch.Tensor]) -> tuple[torch.Tensor, float]:
        """``rope_frequencies`` on the device: computed once, not at each call."""
        import torch

        d = call.problem.integer("d")
        key = (d, tuple(sorted(call.attrs.items())), id(w[0]) if w else None)
        if key not in self._frequencies:
            made, factor = rope_frequencies(call.attrs, d, w[0].cpu().numpy() if w else None)
            self._frequencies[key] = torch.from_numpy(made).to(self.place), factor, w
        return self._frequencies[key][:2]

    def _attention(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        cache = self._decoding(call, s)
        if cache is None:
            return super()._attention(call, w, x, s)
        scale = float(call.attrs.get("scale", 1 / math.sqrt(call.problem.integer("d"))))  # type: ignore[arg-type]
        sinks = w[0].reshape(-1) if w else None
        q, k, v = x
        window = call.problem.integer("window")
        return [attention.attend_heads(q, k, v, cache, places(s, self.place), scale, window, sinks)]

    def _mla_attention(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState
    ) -> list[Any]:
        cache = self._decoding(call, s)
        if cache is None:
            return super()._mla_attention(call, w, x, s)
        heads, kv_lora, rope, window = (call.problem.integer(name) for name in ("heads", "kv_lora", "rope", "window"))
        scale = float(call.attrs.get("scale", 1 / math.sqrt(kv_lora + rope)))  # type: ignore[arg-type]
        return [attention.attend_latent(x[0], x[1], cache, places(s, self.place), scale, heads, kv_lora, window)]

    def caches_of(self, state: StepState) -> dict[int, Any]:
        lengths = {sequence: position for sequence, position, _ in state.parts()}
        return {
            layer: in_pages(TorchCache.over(cache), [lengths.get(s, 0) for s in range(len(cache.k))], self.place)
            for layer, cache in state.caches.items()
        }

    def _decoding(self, call: OpCall, state: StepState) -> PagedCache | None:
        """The cache of ``call`` where its tokens attend one by one, over a cache that kernels take: one in pages, as a
        GPU's are.

        Raises:
            UserError: they do not fit.
        """
        if not takes(call.problem).ok:
            return None
        cache: Any = state.caches[int(call.attrs.get("layer", 0))]  # type: ignore[arg-type]
        if not isinstance(cache, PagedCache):
            return None
        if state.on_device is not None:  # one token, of which the host knows nothing else
            return cache
        parts = state.parts()
        if any(rows.stop - rows.start > attention.MAX_TOKENS for _, _, rows in parts):
            return None
        for _, position, rows in parts:
            check_room(cache.capacity, position, rows.stop - rows.start, call.problem.integer("window"))
        return cache

    def _silu_mul(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        return [small_ops.silu_mul(x[0], x[1])]

    def _add(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        return [small_ops.add(x[0], x[1])]

    def _gated_add(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        if not takes(call.problem).ok:
            return super()._gated_add(call, w, x, s)
        return [small_ops.gated_add(x[0], x[1], x[2], w[0].reshape(-1))]

    def _top_logits(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState
    ) -> list[Any]:
        if not takes(call.problem).ok:
            return super()._top_logits(call, w, x, s)
        return list(sampling.largest(x[0], call.problem.integer("top_k")))
