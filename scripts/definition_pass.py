"""A whole model by definition: float32 on dequantised weights, of which it holds one piece at a time.

Every operation is the reference's but for large products, whose matrices are dequantised in pieces of rows, once for
all variants that run side by side. So a model of any size runs in a few GiB, as slowly as weights are dequantised.

A variant may have its tokens' experts given, and may have its activations rounded as llama.cpp's CPU kernels round them
before they multiply: to int8, in blocks of 256 for K-quants and of 32 for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from recorded_routes import route_weights

from kbench.core import OpCall, Phase, Placement, Unsupported
from kbench.kernels import Cache, StepState, WeightData, dequantize, empty_rows, op_spec
from kbench.model import GgufFile, describe_gguf, lower, open_gguf

Array = npt.NDArray[Any]
# Stored rows, their type, elements of a row: float32 ``[rows, row]``.
Dequantize = Callable[[Array, str, int], Array]

# Numbers dequantised at a time: 64 MiB of float32, and as much again a few times while they are made.
_PIECE = 1 << 24

_BLOCK_OF_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_BLOCK_OF_32 = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")


@dataclass(frozen=True)
class Variant:
    """``routes``: ids ``[tokens, top_k]`` by router module; ``rounded``: activations as llama.cpp rounds them."""

    routes: Mapping[str, Array] | None = None
    rounded: bool = False


@dataclass(frozen=True)
class Outcome:
    """``logits [tokens, vocab]``, ``layers[i]`` the output of layer i, ``routes`` as in ``Variant``."""

    logits: Array
    layers: list[Array]
    routes: dict[str, Array]


def as_rounded(x: Array, quant: str) -> Array:
    """``x`` as llama.cpp multiplies it with weights of type ``quant``."""
    if quant == "F16":
        return x.astype(np.float16).astype(np.float32)
    if quant in _BLOCK_OF_256:  # scale: the largest element over -127, so that it becomes exactly -127 steps
        blocks = x.reshape(-1, 256)
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[:, None], axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = np.float32(-127) / largest
            made = np.rint(blocks * inverse) / inverse
    elif quant in _BLOCK_OF_32:  # steps by a float32 scale, which is stored as float16
        blocks = x.reshape(-1, 32)
        largest = np.abs(blocks).max(axis=-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = (largest / np.float32(127)).astype(np.float16).astype(np.float32)
            made = np.rint(blocks * (np.float32(127) / largest)) * scale
    elif quant == "F32":
        return x
    else:
        raise Unsupported(f"how llama.cpp rounds what it multiplies with {quant}")
    return np.where(largest == 0, np.float32(0), made).reshape(x.shape)


class _Weights:
    """A call's stored tensors, and products with them."""

    def __init__(self, gguf: GgufFile, call: OpCall, rounded: Array, numbers: Dequantize) -> None:
        """``rounded [rows]``: of which rows activations are rounded."""
        tensors = [gguf.tensors[name] for name in call.weights]
        self.data = [WeightData(t.info.name, t.info.quant, t.info.shape, t.raw, t.parts) for t in tensors]
        self._rounded, self._numbers = rounded, numbers

    def rounded(self, x: Array, weight: int, rows: Array | slice = slice(None)) -> Array:
        """``x``, which is ``rows`` of all, as it meets tensor ``weight``."""
        mask = self._rounded[rows]
        made = x.copy()
        made[mask] = as_rounded(x[mask], self.data[weight].quant)
        return made

    def floats(self, weight: int) -> Array:
        """A vector."""
        stored = self.data[weight]
        return dequantize(stored.raw, stored.quant, stored.shape[0]).reshape(-1)

    def product(self, x: Array, weight: int, index: int = 0) -> Array:
        """``x`` times matrix ``index`` of a tensor, transposed."""
        stored = self.data[weight]
        k, n, count = (*stored.shape, 1)[:3]
        rows = stored.parts[index].reshape(n, -1) if stored.parts else stored.raw.reshape(count, n, -1)[index]
        y = np.empty((len(x), n), np.float32)
        step = max(1, _PIECE // k)
        for begin in range(0, n, step):
            y[:, begin : begin + step] = x @ self._numbers(rows[begin : begin + step], stored.quant, k).T
        return y


class DefinitionPass:
    """One prefill of ``ids`` under each of several variants, which are sequences of one batch."""

    def __init__(
        self, path: Path, ids: Sequence[int], variants: Sequence[Variant], numbers: Dequantize = dequantize
    ) -> None:
        """``numbers`` dequantises large matrices: by default the gguf package, which does some 100 million a second."""
        self._gguf = open_gguf(path)
        self._model = describe_gguf(self._gguf)
        self._variants, self._tokens, self._numbers = variants, len(ids), numbers
        n = len(variants)
        spans = np.array([(sequence, 0, len(ids)) for sequence in range(n)], np.int64)
        self._state = StepState(np.tile(np.asarray(ids, np.int32), n), 0, {}, spans)
        self._rounded = np.repeat([variant.rounded for variant in variants], len(ids))
        # Latents multiplied out, as llama.cpp does where kv_b is stored in one piece.
        attention = Placement(absorb_for_prefill=False)
        placed = {f"model.layers.{layer}.self_attn": attention for layer in range(self._model.n_layers)}
        self._calls = lower(
            self._model, placed, Phase.PREFILL, len(ids), len(ids), kv="f32", logits="all",
            resolve=lambda *_: "reference",
        )  # fmt: skip

    def run(self, progress: Any = None) -> list[Outcome]:
        """The outcome of each variant. ``progress``: told each layer that is done."""
        last_use = {name: i for i, call in enumerate(self._calls) for name in call.inputs}
        values: dict[str, Array] = {"$tokens": self._state.tokens}
        kept: dict[str, Array] = {}
        layers = [f"model.layers.{layer}" for layer in range(self._model.n_layers)]
        for i, call in enumerate(self._calls):
            outputs = self._run(call, [values[name] for name in call.inputs])
            values |= {value.name: output for value, output in zip(call.outputs, outputs, strict=True)}
            kept |= {name: values[name] for name in values if name in layers or name.endswith((".gate.ids", "logits"))}
            for name in call.inputs:
                if last_use[name] == i and name != "$tokens":
                    del values[name]
            if progress is not None and call.outputs[0].name in layers:
                progress(call.outputs[0].name)
        return [self._outcome(number, kept, layers) for number in range(len(self._variants))]

    def _outcome(self, number: int, kept: Mapping[str, Array], layers: Sequence[str]) -> Outcome:
        rows = slice(number * self._tokens, (number + 1) * self._tokens)
        routes = {name.removesuffix(".ids"): kept[name][rows] for name in kept if name.endswith(".ids")}
        return Outcome(kept["logits"][rows], [kept[name][rows] for name in layers], routes)

    def _run(self, call: OpCall, inputs: Sequence[Array]) -> list[Array]:
        weights = _Weights(self._gguf, call, self._rounded, self._numbers)
        if call.op == "linear":
            y = weights.product(weights.rounded(inputs[0], 0), 0)
            return [y if len(weights.data) == 1 else y + weights.floats(1)]
        if call.op == "moe_experts":
            return [self._experts(call, weights, *inputs)]
        if call.op == "mla_decompressed":
            kv_lora = call.problem.integer("kv_lora")
            latent = inputs[1].copy()
            latent[:, :kv_lora] = weights.rounded(np.ascontiguousarray(latent[:, :kv_lora]), 0)
            inputs = [inputs[0], latent]
        layer = call.attrs.get("layer")
        if layer is not None:
            self._state.caches = {int(str(layer)): self._cache(call)}
        outputs = op_spec(call.op).reference(call, weights.data, inputs, self._state, np.float32)
        return self._given(call, weights, inputs[0], outputs) if call.op == "moe_router" else outputs

    def _cache(self, call: OpCall) -> Cache:
        sizes = call.problem
        mla = sizes.has("kv_lora")
        heads, k = (1, sizes.integer("kv_lora") + sizes.integer("rope")) if mla else (
            sizes.integer("kv_heads"), sizes.integer("d"))  # fmt: skip
        made = [
            np.stack([empty_rows("f32", heads, self._tokens, width)] * len(self._variants))
            for width in (k, 0 if mla else k)
        ]
        return Cache(made[0], made[1], "f32")

    def _given(self, call: OpCall, weights: _Weights, x: Array, outputs: Sequence[Array]) -> list[Array]:
        """A router's ``outputs`` with the routes that some variants are given."""
        ids, scores = (output.copy() for output in outputs)
        assert self._model.moe is not None
        for number, variant in enumerate(self._variants):
            if variant.routes is None:
                continue
            rows = slice(number * self._tokens, (number + 1) * self._tokens)
            ids[rows] = variant.routes[call.module][: self._tokens]
            scores[rows] = route_weights(weights.product(x[rows], 0), ids[rows], self._model.moe)
        return [ids, scores]

    def _experts(self, call: OpCall, weights: _Weights, x: Array, ids: Array, scores: Array) -> Array:
        if len(weights.data) != 3 or "activation" in call.attrs:
            raise Unsupported("experts with biases or clamps", where=call.module)
        y = np.zeros_like(x)
        read = [weights.rounded(x, part) for part in (0, 1)]
        for expert in np.unique(ids):
            token, slot = np.nonzero(ids == expert)
            gate, up = (weights.product(read[part][token], part, int(expert)) for part in (0, 1))
            hidden = weights.rounded(gate / (1 + np.exp(-gate)) * up, 2, token)
            y[token] += scores[token, slot][:, None] * weights.product(hidden, 2, int(expert))
        return y
