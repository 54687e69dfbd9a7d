"""The implementation ``torch``: the best plain torch call per operation, without kernels of our own."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kbench.core import Block, OpCall, Problem

from ..block_parameters import BlockParameter
from ..cache import Cache, Stored, append, cached, decode, first_seen, refusal
from ..expert_subset import ELSEWHERE, place_table, visited
from ..implementation import YES, AnyArray, Prepared, StepState, Support, WeightData
from ..reference import Tensor, cache_of, clamp_of, dequantize, expansion, route, router_biases
from ..rope import rope_frequencies
from .attend import attend, hidden
from .captured import torch_capturable

if TYPE_CHECKING:
    import torch

_MATRIX_OPS = ("linear", "head_linear", "mla_decompressed", "moe_experts")


def fast_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 natively. Without that torch emulates it: on an AVX2 machine a bf16 GEMV of
    4096 x 4096 took 1.5 times as long as float32's, although it reads half the bytes."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False  # not Linux: float32 is never wrong
    return "avx512_bf16" in flags or "amx_bf16" in flags


@dataclass(frozen=True, slots=True)
class TorchWeights:
    """Matrices as torch tensors, or as what else knows its ``n_bytes``, vectors in float32; an embedding stays stored
    and is read by row."""

    tensors: tuple[Any, ...]

    @property
    def n_bytes(self) -> int:
        return sum(t.n_bytes if hasattr(t, "n_bytes") else t.numel() * t.element_size() for t in self.tensors)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if count and count != before:
        torch.set_num_threads(count)
    try:
        with torch.inference_mode():
            yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


class TorchImplementation:
    """Plain torch. ``dtype`` is ``bf16`` or ``f32``; by default bf16 where the CPU has it natively.

    ``run`` takes and returns arrays in host memory and computes on the CPU; ``TorchDevice`` keeps them on any device.
    """

    device_kind = "cpu"
    # Whether attention computes in the cache's type, where that is f16 or bf16, instead of in float32.
    halves = False

    def __init__(self, dtype: str | None = None) -> None:
        self.name = "torch"
        self.place = "cpu"  # torch's name of the device that weights are prepared on
        # Of parts of a layer's experts: made before a graph is captured, which takes nothing from host memory.
        self._places: dict[Any, torch.Tensor] = {}
        self.dtype = dtype or ("bf16" if fast_bf16() else "f32")
        self.summary = f"plain torch: F.linear on weights dequantised to {self.dtype}, scaled_dot_product_attention"

    def accuracy(self, problem: Problem) -> str:
        """What products are made of: see ``tolerance``."""
        if self.halves and problem.op == "attention" and problem.text("kv") in ("f16", "bf16"):
            return problem.text("kv")
        return self.dtype if problem.op in _MATRIX_OPS else "f32"

    def runnable(self) -> Support:
        # Only looked for: importing it takes seconds, and most commands never need it.
        return YES if importlib.util.find_spec("torch") is not None else Support(False, "torch is not installed")

    def runnable_on_cuda(self) -> Support:
        """Whether torch finds a CUDA device; importing torch is what it takes to know."""
        if not self.runnable().ok:
            return self.runnable()
        import torch

        return YES if torch.cuda.is_available() else Support(False, "torch finds no CUDA device")

    def supports(self, problem: Problem) -> Support:
        refused = refusal(problem)
        return Support(False, refused) if refused else YES

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        return ()

    def capturable(self, problem: Problem) -> Support:
        """On a GPU; on the CPU its calls need Python."""
        return torch_capturable(problem)

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> TorchWeights:
        if problem.op == "embedding":
            return TorchWeights((Tensor(weights[0]),))
        import torch

        low = torch.bfloat16 if self.accuracy(problem) == "bf16" else torch.float32
        tensors = []
        for weight in weights:
            # Of experts there is a bias, too, for each.
            is_matrix = len(weight.shape) > (2 if problem.op == "moe_experts" else 1)
            dtype = low if is_matrix else torch.float32
            out = torch.empty(math.prod(weight.shape[1:]), weight.shape[0], dtype=dtype, device=self.place)
            raw = weight.whole.reshape(len(out), -1)
            # By slices of about 16 MB in float32: the float32 copy of a whole layer's experts would be 15 GB.
            step = max(1, (4 << 20) // weight.shape[0])
            for start in range(0, len(out), step):
                values = dequantize(raw[start : start + step], weight.quant, weight.shape[0])
                # Unquantised values are a view of the read-only file, which torch warns about: those are copied.
                out[start : start + step] = torch.from_numpy(np.require(values, requirements="W"))
            tensors.append(out.reshape(*weight.shape[::-1]))
        return TorchWeights(tuple(tensors))

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        import torch

        assert isinstance(prepared, TorchWeights)
        if call.op == "embedding":
            return [prepared.tensors[0].rows(state.tokens)]
        with _threads(threads):
            x = [torch.from_numpy(np.ascontiguousarray(a)) for a in inputs]
            y = getattr(self, f"_{call.op}")(call, prepared.tensors, x, state)
            return [t if isinstance(t, np.ndarray) else (t if t.dtype == torch.int32 else t.float()).numpy() for t in y]

    def _rms_norm(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], _: StepState) -> list[Any]:
        import torch

        d = call.problem.integer("d")
        eps = float(call.attrs.get("eps", 1e-6))  # type: ignore[arg-type]
        rows = x[0].reshape(-1, int(call.attrs.get("row_width", d)))  # type: ignore[arg-type]
        y = torch.nn.functional.rms_norm(rows[:, :d], (d,), w[0].reshape(-1), eps)
        return [(y if rows.shape[1] == d else torch.cat([y, rows[:, d:]], dim=-1)).reshape(x[0].shape)]

    def _linear(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], _: StepState) -> list[Any]:
        import torch

        bias = w[1].to(w[0].dtype) if len(w) > 1 else None
        return [torch.nn.functional.linear(x[0].to(w[0].dtype), w[0], bias)]

    def _head_linear(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], _: StepState
    ) -> list[Any]:
        import torch

        heads, n, k = (call.problem.integer(name) for name in ("heads", "n", "k"))
        rows = x[0].reshape(len(x[0]), heads, -1)
        matrices = w[0]
        if matrices.ndim == 2:  # a layer's whole kv_b: per head nope rows of k, then rows of v
            matrices = matrices.reshape(heads, -1, matrices.shape[-1])
            matrices = matrices[:, :k].transpose(1, 2) if call.attrs.get("half") == "k" else matrices[:, -n:]
        y = torch.bmm(rows[:, :, :k].transpose(0, 1).to(w[0].dtype), matrices.transpose(1, 2)).transpose(0, 1).float()
        rest = call.outputs[0].width // heads - n
        if rest:
            y = torch.cat([y, rows[:, :, k : k + rest]], dim=-1)
        return [y.reshape(len(rows), -1)]

    def _rope(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], state: StepState) -> list[Any]:
        import torch

        heads, d = call.problem.integer("heads"), call.problem.integer("d")
        positions, inv_freq, factor = self._turns(call, w, x[0].device, state)
        angles = torch.outer(positions, inv_freq)[:, None]
        cos, sin = angles.cos() * factor, angles.sin() * factor
        vectors = x[0].reshape(len(x[0]), heads, -1)
        first = call.attrs.get("part") == "first"
        turning, still = (vectors[..., :d], vectors[..., d:]) if first else (vectors[..., -d:], vectors[..., :-d])
        if call.attrs.get("mode") == "neox":
            a, b = turning.chunk(2, dim=-1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        else:
            a, b = turning[..., 0::2], turning[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        return [torch.cat([turned, still] if first else [still, turned], dim=-1).reshape(x[0].shape)]

    def _turns(
        self, call: OpCall, w: Sequence[torch.Tensor], device: torch.device, state: StepState
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Positions, float32 ``[tokens]``; how far a pair turns with each; a factor for the result."""
        import torch

        inv_freq, factor = rope_frequencies(call.attrs, call.problem.integer("d"), w[0].cpu().numpy() if w else None)
        positions = torch.from_numpy(state.positions).to(device, torch.float32)
        return positions, torch.from_numpy(inv_freq).to(device), factor

    def _attention(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], state: StepState
    ) -> list[Any]:
        import torch

        heads, d, window = (call.problem.integer(name) for name in ("heads", "d", "window"))
        sinks, scale = w[0] if w else None, float(call.attrs.get("scale", 1 / math.sqrt(d)))  # type: ignore[arg-type]
        y = torch.empty_like(x[0])
        for sequence, position, rows in state.parts():
            q, k, v = (t[rows].reshape(rows.stop - rows.start, -1, d).transpose(0, 1) for t in x)
            keys, values = self._kept(call, state, (k, v), sequence, position, widen=not self.halves)
            first = position - first_seen(position, window)
            part = attend(q, keys, values, first, scale, window, sinks)
            y[rows] = part.transpose(0, 1).reshape(-1, heads * d)
        return [y]

    def _kept(
        self,
        call: OpCall,
        state: StepState,
        rows: Sequence[torch.Tensor],
        sequence: int,
        position: int,
        *,
        widen: bool = True,
    ) -> list[torch.Tensor]:
        """``reference``'s: appended, and what is cached of them; in float32 with ``widen``."""
        cache: Any = cache_of(call, state)
        window = call.problem.integer("window")
        if not isinstance(cache, Cache):  # tensors, on any device
            found: list[torch.Tensor] = cache.append(sequence, position, rows, window, widen)
            return found
        pairs = zip((cache.k, cache.v), rows, strict=False)
        return [_append(stored, cache.kv, sequence, position, new, window) for stored, new in pairs]

    def _mla_attention(
        self, call: OpCall, _: Sequence[torch.Tensor], x: Sequence[torch.Tensor], state: StepState
    ) -> list[Any]:
        import torch

        heads, kv_lora, rope_d, window = (call.problem.integer(name) for name in ("heads", "kv_lora", "rope", "window"))
        scale = float(call.attrs.get("scale", 1 / math.sqrt(kv_lora + rope_d)))  # type: ignore[arg-type]
        result = torch.empty(len(x[0]), heads * kv_lora, device=x[0].device)
        for sequence, position, rows in state.parts():
            tokens = rows.stop - rows.start
            q = x[0][rows].reshape(tokens, heads, kv_lora + rope_d).transpose(0, 1)
            (latent,) = self._kept(call, state, (x[1][rows][None],), sequence, position)
            # All heads share one latent: as extra rows of one head's matrix product rather than `heads` copies of it.
            scores = (q.reshape(-1, q.shape[-1]) @ latent[0].T).reshape(heads, tokens, -1) * scale
            if tokens > 1:
                first = position - first_seen(position, window)
                scores.masked_fill_(hidden(tokens, scores.shape[-1], first, scores.device, window), -math.inf)
            y = scores.softmax(dim=-1).reshape(heads * tokens, -1) @ latent[0, :, :kv_lora]
            result[rows] = y.reshape(heads, tokens, kv_lora).transpose(0, 1).reshape(tokens, heads * kv_lora)
        return [result]

    def _mla_decompressed(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], state: StepState
    ) -> list[Any]:
        import torch

        p, window = call.problem, call.problem.integer("window")
        heads, kv_lora, width = p.integer("heads"), p.integer("kv_lora"), p.integer("nope") + p.integer("rope")
        scale = float(call.attrs.get("scale", width**-0.5))
        to_k, to_v = expansion(call, w)  # type: ignore[arg-type]
        result = torch.empty(len(x[0]), heads * p.integer("v"), device=x[0].device)
        for sequence, position, rows in state.parts():
            q = x[0][rows].reshape(-1, heads, width).transpose(0, 1)
            ((latent,),) = self._kept(call, state, (x[1][rows][None],), sequence, position)
            c, dtype = latent[:, :kv_lora].to(w[0].dtype), w[0].dtype if self.halves else torch.float32
            rotated = latent[None, :, kv_lora:].expand(heads, -1, -1)
            keys = torch.cat([torch.matmul(c, to_k.transpose(1, 2)).to(dtype), rotated.to(dtype)], dim=-1)
            values = torch.matmul(c, to_v.transpose(1, 2)).to(dtype)
            y = attend(q, keys, values, position - first_seen(position, window), scale, window)
            result[rows] = y.transpose(0, 1).reshape(q.shape[1], -1)
        return [result]

    def _silu_mul(self, call: OpCall, _: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        import torch

        return [torch.nn.functional.silu(x[0]).mul_(x[1])]

    def _add(self, call: OpCall, _: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        return [x[0] + x[1]]

    def _gated_add(self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        return [x[0] + (x[2] @ w[0].reshape(-1)).sigmoid()[:, None] * x[1]]

    def _take_last(self, call: OpCall, _: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        return [x[0][-1:].clone()]

    def _top_logits(
        self, call: OpCall, _: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState
    ) -> list[Any]:
        values, ids = x[0].topk(call.problem.integer("top_k"))
        return [ids.int(), values]

    def _transfer(self, call: OpCall, _: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        return [x[0].clone()]

    def _moe_router(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], _: StepState
    ) -> list[Any]:
        import torch

        logit_bias, bias = router_biases(call, w)
        logits = torch.nn.functional.linear(x[0], w[0], None if logit_bias is None else logit_bias.reshape(-1)).numpy()
        return list(
            route(logits, call.problem.integer("top_k"), call.attrs, None if bias is None else bias.reshape(-1).numpy())
        )

    def _expert_map(
        self, call: OpCall, _: Sequence[torch.Tensor], x: Sequence[torch.Tensor], s: StepState
    ) -> list[Any]:
        import torch

        key = (call.attrs["experts"], call.problem.integer("experts"))
        if key not in self._places:
            self._places[key] = torch.from_numpy(place_table(*key)).to(self.place)  # type: ignore[arg-type]
        here = self._places[key].take(x[0].long())
        return [here, torch.where(here == ELSEWHERE, 0.0, x[1])]

    def _moe_experts(
        self, call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], _: StepState
    ) -> list[Any]:
        import torch

        clamp = clamp_of(call)
        hidden, ids, scores = x[0].to(w[0].dtype), x[1], x[2]

        def project(part: int, rows: torch.Tensor, place: int) -> torch.Tensor:
            bias = w[3 + part][place].to(rows.dtype) if len(w) > 3 else None
            return torch.nn.functional.linear(rows, w[part][place], bias)

        y = torch.zeros_like(x[0])
        for expert, place in visited(call, torch.unique(ids).tolist()):
            token, slot = (ids == expert).nonzero(as_tuple=True)
            rows = hidden[token]
            out = project(2, _gated(project(0, rows, place), project(1, rows, place), clamp), place)
            y.index_add_(0, token, out.float() * scores[token, slot][:, None])
        return [y]


def _gated(gate: torch.Tensor, up: torch.Tensor, clamp: tuple[float, float] | None) -> torch.Tensor:
    """``reference.gated`` in torch."""
    import torch

    if clamp is None:
        return torch.nn.functional.silu(gate).mul_(up)
    alpha, limit = clamp
    g, u = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (g * alpha).sigmoid_().mul_(g).mul_(u.add_(1))


def _append(stored: Stored, kv: str, sequence: int, position: int, rows: torch.Tensor, window: int) -> torch.Tensor:
    """Writes ``rows [heads, tokens, width]`` into the cache; what is cached that any of them sees, in float32."""
    import torch

    append(stored, kv, sequence, position, rows.numpy(), window)
    filled = cached(stored, sequence, first_seen(position, window), position + rows.shape[1])
    if kv == "bf16":
        return torch.from_numpy(filled.view(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(decode(kv, filled) if kv == "q8_0" else filled).float()
