"""A single call as a native program of its own, with an arena that holds just its values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall

from ..cache import Cache
from ..implementation import AnyArray, Spans, StepState
from .extension import extension

if TYPE_CHECKING:
    from ._native import Pool
    from .native import NativeImplementation, PackedWeights

_LINE = 64
_DTYPES: dict[str, Any] = {"f32": np.float32, "i32": np.int32}


def aligned_bytes(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros that begin on a cache line."""
    raw = np.zeros(n_bytes + _LINE, np.uint8)
    begin = -raw.ctypes.data % _LINE
    return raw[begin : begin + n_bytes]


class OneCall:
    """A recorded call: write the inputs, step as often as wanted, read the outputs."""

    def __init__(
        self,
        implementation: NativeImplementation,
        call: OpCall,
        prepared: PackedWeights,
        caches: Mapping[int, Cache],
        n_tokens: int,
        pool: Pool,
        n_spans: int = 1,
    ) -> None:
        self._call, self._caches = call, caches  # held: the program knows their addresses
        self._names = [name for name in call.inputs if name != "$tokens"]
        widths = _input_widths(call, n_tokens)
        offsets: dict[str, int] = {}
        end = 0
        for name, elements in widths.items():
            offsets[name] = end
            end += math.ceil(elements * 4 / _LINE) * _LINE
        for value in call.outputs:
            offsets[value.name] = end
            end += math.ceil(value.width * n_tokens * 4 / _LINE) * _LINE
        self._offsets, self._elements = offsets, widths
        self._arena = aligned_bytes(end)
        self._n_tokens = n_tokens
        self._tokens = np.zeros(n_tokens, np.int32)
        self._where: int | Spans = 0
        self._program = extension().Program(pool, self._arena, n_tokens, n_spans)
        implementation.emit(self._program, call, prepared, offsets, caches)

    def write(self, inputs: Sequence[AnyArray], state: StepState) -> None:
        """Copies the inputs into the arena.

        Raises:
            ValueError: an input of another size than the call says.
        """
        self._tokens[:] = state.tokens
        self._where = state.position if state.spans is None else state.spans
        if self._names:
            for name, array in zip(self._names, inputs, strict=True):
                n = self._elements[name]
                if array.size != n:
                    raise ValueError(f"{self._call.op}: {name} has {array.size} elements, expected {n}")
                dtype = np.int32 if array.dtype.kind in "iu" else np.float32
                begin = self._offsets[name]
                self._arena[begin : begin + 4 * n].view(dtype)[:] = array.reshape(-1)

    def step(self) -> None:
        """One run on what was written last."""
        self._program.run(self._tokens, self._where)

    def profile(self) -> float:
        """Seconds of one run, measured inside the parallel region."""
        return float(sum(self._program.run(self._tokens, self._where, True)))

    def read(self) -> list[AnyArray]:
        """Copies of the outputs."""
        results: list[AnyArray] = []
        for value in self._call.outputs:
            rows = 1 if value.rows == "one" else self._n_tokens
            begin = self._offsets[value.name]
            view = self._arena[begin : begin + 4 * rows * value.width].view(_DTYPES[value.dtype])
            results.append(view.reshape(rows, value.width).copy())
        return results

    def run(self, inputs: Sequence[AnyArray], state: StepState) -> list[AnyArray]:
        self.write(inputs, state)
        self.step()
        return self.read()


def _input_widths(call: OpCall, n_tokens: int) -> dict[str, int]:
    """Elements of each input; a call's problem implies them."""
    p, out = call.problem, call.outputs[0]
    rows = 1 if out.rows == "one" and call.op != "take_last" else n_tokens
    names = [name for name in call.inputs if name != "$tokens"]
    if call.op == "embedding":
        widths: list[int] = []
    elif call.op == "linear" or call.op == "moe_router":
        widths = [p.integer("k")]
    elif call.op == "head_linear":
        heads = p.integer("heads")
        widths = [out.width + heads * (p.integer("k") - p.integer("n"))]
    elif call.op == "attention":
        kv = p.integer("kv_heads") * p.integer("d")
        widths = [p.integer("heads") * p.integer("d"), kv, kv]
    elif call.op == "mla_attention":
        width = p.integer("kv_lora") + p.integer("rope")
        widths = [p.integer("heads") * width, width]
    elif call.op == "mla_decompressed":
        width = p.integer("nope") + p.integer("rope")
        widths = [p.integer("heads") * width, p.integer("kv_lora") + p.integer("rope")]
    elif call.op == "moe_experts":
        widths = [p.integer("k"), p.integer("top_k"), p.integer("top_k")]
    else:  # elementwise: inputs are as wide as the output
        widths = [out.width] * len(names)
    return {name: rows * width for name, width in zip(names, widths, strict=True)}
