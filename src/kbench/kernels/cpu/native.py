"""Implementations ``cpu.scalar``, ``cpu.avx2``, ``cpu.avx512_vnni``: weights packed once, calls recorded as steps."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kbench.core import OpCall, Problem, Unsupported, quant

from ..block_parameters import BlockParameter, parameter_errors
from ..cache import Cache, refusal
from ..implementation import YES, AnyArray, FloatArray, StepState, Support, WeightData
from ..reference import dequantize
from .emitters import EMITTERS, Item
from .extension import extension, pool

if TYPE_CHECKING:
    from ._native import Matrix, Program
    from .one_call import OneCall

# Formats that have kernels; every other GGUF type is read by the torch and reference implementations only.
FORMATS = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4",
)  # fmt: skip
# The parameters of a problem that are storage types.
_QUANTS = ("quant", "quant_gate", "quant_up", "quant_down")
# Recorded calls kept per packed weight: a benchmark alternates between a few, an engine records its own programs.
_KEPT_CALLS = 4


@dataclass(slots=True)
class PackedWeights:
    """The weights of a call as the kernels read them, one item a tensor.

    A vector (norm, bias, rope factors) is float32; a matrix is packed; a stack of matrices (experts, heads) is a list.
    All instruction sets read the same packing.
    """

    items: tuple[Item, ...]
    n_bytes: int
    seconds: float
    calls: dict[tuple[object, ...], OneCall] = field(default_factory=dict)


class NativeImplementation:
    """The kernels of one instruction set."""

    device_kind = "cpu"

    def __init__(self, isa: str, missing: str = "") -> None:
        """``missing`` says why ``isa`` cannot run here; empty when it can."""
        self.isa, self._missing = isa, missing
        self.name = f"cpu.{isa}"
        self.summary = f"native {isa} kernels on packed weights, activations in two int8 planes for quantised types"

    def runnable(self) -> Support:
        return Support(False, self._missing) if self._missing else YES

    def supports(self, problem: Problem) -> Support:
        if problem.op not in EMITTERS:
            return Support(False, f"no native kernel for {problem.op}")
        for name in _QUANTS:
            if problem.has(name) and problem.text(name) not in FORMATS:
                return Support(False, f"no native kernel for {problem.text(name)} yet")
        refused = refusal(problem)
        return Support(False, refused) if refused else YES

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        """Those of ``problem``; without one, all of them: every instruction set knows every name."""
        if problem is None:
            return _parameters(self.isa)
        quants = [problem.text(name) for name in _QUANTS if problem.has(name)] or [""]
        found = {p.name: p for quant_name in quants for p in _parameters(self.isa, problem.op, quant_name)}
        return tuple(found.values())

    def prepare(self, problem: Problem, weights: Sequence[WeightData]) -> PackedWeights:
        """Packs ``weights`` on all cores.

        Raises:
            Unsupported: a storage type without a kernel, or a shape that is no vector, matrix or stack.
        """
        begin = time.perf_counter()
        items = tuple(_pack(problem, weight) for weight in weights)
        n_bytes = sum(_item_bytes(item) for item in items)
        return PackedWeights(items, n_bytes, time.perf_counter() - begin)

    def emit(
        self,
        program: Program,
        call: OpCall,
        prepared: PackedWeights,
        offsets: Mapping[str, int],
        caches: Mapping[int, Cache],
    ) -> int:
        """Appends ``call`` to ``program``; returns the index of its (last) step.

        Args:
            offsets: byte offset in the program's arena of every value that the call reads or writes.
            caches: by layer; attention writes its own.

        Raises:
            Unsupported: an operation without a kernel.
            ValueError: something does not fit the arena or the caches.
        """
        emitter = EMITTERS.get(call.op)
        if emitter is None:
            raise Unsupported(f"{self.name} has no kernel for {call.op}")
        threads = min(call.threads or 0, program.threads)
        self._choose(program, call)
        return emitter(program, self.isa, call, prepared.items, offsets, caches, threads)

    def _choose(self, program: Program, call: OpCall) -> None:
        """Sets the call's kernel parameters; the others to their defaults."""
        program.reset_parameters()
        if call.block:
            known = {parameter.name: parameter for parameter in self.block_parameters()}
            for error in parameter_errors(call.block, known, call.module).values():
                raise error
            for name, value in call.block.items():
                program.set_parameter(name, value)

    def run(
        self, call: OpCall, prepared: PackedWeights, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        """Runs ``call`` by itself, as a program of one step; returns copies of its outputs."""
        return self.recorded(call, prepared, state, threads).run(inputs, state)

    def recorded(self, call: OpCall, prepared: PackedWeights, state: StepState, threads: int) -> OneCall:
        """``call`` as a program of one step, recorded once and kept with its weights.

        Benchmarks time ``OneCall.step``, which leaves out the copies to and from the arena.
        """
        from .one_call import OneCall

        layer = int(call.attrs.get("layer", 0))  # type: ignore[arg-type]
        caches = {layer: state.caches[layer]} if layer in state.caches else {}
        # Arrays by identity: their addresses are recorded. A kept call holds them, so that no other takes their id.
        held = tuple(id(array) for cache in caches.values() for array in (cache.k, cache.v))
        key = (id(call), self.name, threads, len(state.tokens), held)
        found = prepared.calls.get(key)
        if found is None:
            found = OneCall(self, call, prepared, caches, len(state.tokens), pool(threads))
            while len(prepared.calls) >= _KEPT_CALLS:
                prepared.calls.pop(next(iter(prepared.calls)))
            prepared.calls[key] = found
        return found


@functools.lru_cache(maxsize=512)
def _parameters(isa: str, op: str = "", quant_name: str = "") -> tuple[BlockParameter, ...]:
    return tuple(_parameter(fields) for fields in extension().block_parameters(isa, op, quant_name))


def _parameter(fields: dict[str, Any]) -> BlockParameter:
    choices = tuple(fields["choices"])
    default, *candidates = (choices[v] if choices else v for v in (fields["default"], *fields["candidates"]))
    return BlockParameter(**{**fields, "choices": choices, "default": default, "candidates": tuple(candidates)})


def implementations() -> tuple[NativeImplementation, ...]:
    """One for each instruction set of the extension, whether or not it can run here.

    Raises:
        NativeMissing: the extension is not built.
    """
    return tuple(NativeImplementation(name, missing) for name, missing in extension().isas())


def _pack(problem: Problem, weight: WeightData) -> Item:
    if len(weight.shape) == 1:
        return _vector(weight)
    if problem.op == "head_linear" and len(weight.shape) == 2:
        return _halves_of_kv_b(problem, weight)
    if len(weight.shape) == 2:
        return _matrix(weight.quant, weight.raw, weight.shape[1], weight.shape[0])
    if len(weight.shape) == 3:
        k, n, count = weight.shape
        size = quant(weight.quant).row_bytes(k) * n
        return [_matrix(weight.quant, weight.raw[i * size : (i + 1) * size], n, k) for i in range(count)]
    raise Unsupported(f"{weight.name} has {len(weight.shape)} dimensions", accepted="1, 2 or 3")


def _vector(weight: WeightData) -> FloatArray:
    return np.ascontiguousarray(dequantize(weight.raw, weight.quant, weight.shape[0]).reshape(-1), np.float32)


def _matrix(quant_name: str, raw: Any, n: int, k: int) -> Matrix:
    if quant_name not in FORMATS:
        raise Unsupported(f"no native kernel for {quant_name} yet", accepted=", ".join(FORMATS))
    made: Matrix = extension().pack(quant_name, np.ascontiguousarray(raw), n, k, pool())
    return made


def _halves_of_kv_b(problem: Problem, weight: WeightData) -> list[Matrix]:
    """Each head's matrix out of a layer's ``kv_b`` ``[heads * (nope + v), kv_lora]``.

    Its last ``n`` rows as they are stored when they read the latent; else its first ``k`` rows transposed, which
    stored blocks cannot express: dequantised and stored again as the problem's type.
    """
    heads, n, k = (problem.integer(name) for name in ("heads", "n", "k"))
    kv_lora, rows = weight.shape[0], weight.shape[1] // heads
    row_bytes = quant(weight.quant).row_bytes(kv_lora)
    per_head = [weight.raw[h * rows * row_bytes : (h + 1) * rows * row_bytes] for h in range(heads)]
    if k == kv_lora:
        return [_matrix(weight.quant, raw[(rows - n) * row_bytes :], n, k) for raw in per_head]
    if n != kv_lora:
        raise Unsupported(f"{weight.name} is {kv_lora} wide; {problem.key} needs one side of it that wide")
    from gguf import GGMLQuantizationType, quants

    stored = GGMLQuantizationType[problem.text("quant")]
    made = []
    for raw in per_head:
        whole = dequantize(raw, weight.quant, kv_lora)
        turned = quants.quantize(np.ascontiguousarray(whole[:k].T), stored)
        made.append(_matrix(stored.name, turned.view(np.uint8).reshape(-1), n, k))
    return made


def _item_bytes(item: Item) -> int:
    if isinstance(item, list):
        return sum(matrix.n_bytes for matrix in item)
    return item.nbytes if isinstance(item, np.ndarray) else item.n_bytes
