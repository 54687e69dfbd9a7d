"""Implementations ``cpu.scalar``, ``cpu.avx2``, ``cpu.avx512_vnni``: weights packed once, calls recorded as steps."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kbench.core import Block, OpCall, Problem, Unsupported

from ..block_parameters import BlockParameter, parameter_errors
from ..cache import Cache, refusal
from ..implementation import YES, AnyArray, StepState, Support, WeightData
from .emitters import EMITTERS, Item
from .extension import extension, pool
from .matrices import FORMATS, item_bytes, make_item

if TYPE_CHECKING:
    from ._native import Program
    from .one_call import OneCall

# The kernel parameter that decides how weights are prepared: everything else is decided when a call is recorded.
LAYOUT, RAW = "layout", "raw"
# The parameters of a problem that are storage types.
_QUANTS = ("quant", "quant_gate", "quant_up", "quant_down", "quant_k", "quant_v")
# Recorded calls kept per packed weight: a benchmark alternates between a few, an engine records its own programs.
_KEPT_CALLS = 4


@dataclass(slots=True)
class PackedWeights:
    """The weights of a call as the kernels read them, one item a tensor.

    A vector (norm, bias, rope factors) is float32; a matrix is packed, or left where it is stored; a stack of matrices
    (experts, heads) is a list. All instruction sets read the same packing.
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

    @property
    def tests(self) -> str:
        """How its kernels are tested."""
        return str(extension().isa_tests()[self.isa])

    def kernel_sources(self) -> dict[str, str]:
        """For each storage type with kernels for packed weights, the implementation that they were written for: this
        one or a lower one. Nothing where this one cannot run: its kernels are not even looked at."""
        if self._missing:
            return {}
        return {name: f"cpu.{isa}" for name, isa in extension().kernel_sources(self.isa).items()}

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
        tokens = problem.integer("tokens")
        found = {p.name: p for quant_name in quants for p in _parameters(self.isa, problem.op, quant_name, tokens)}
        return tuple(found.values())

    def capturable(self, problem: Problem) -> Support:
        """Programs run without Python."""
        return self.supports(problem)

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> PackedWeights:
        """Packs ``weights`` on all cores; with ``block={"layout": "raw"}`` keeps them where they are.

        Raises:
            Unsupported: a storage type without a kernel, or a shape that is no vector, matrix or stack.
        """
        begin = time.perf_counter()
        raw = (block or {}).get(LAYOUT) == RAW
        items = tuple(make_item(problem, weight, raw=raw) for weight in weights)
        n_bytes = sum(item_bytes(item) for item in items)
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
        n_spans = 1 if state.spans is None else len(state.spans)
        key = (id(call), self.name, threads, len(state.tokens), n_spans, held)
        found = prepared.calls.get(key)
        if found is None:
            found = OneCall(self, call, prepared, caches, len(state.tokens), pool(threads), n_spans)
            while len(prepared.calls) >= _KEPT_CALLS:
                prepared.calls.pop(next(iter(prepared.calls)))
            prepared.calls[key] = found
        return found


@functools.lru_cache(maxsize=512)
def _parameters(isa: str, op: str = "", quant_name: str = "", tokens: int = 0) -> tuple[BlockParameter, ...]:
    return tuple(_parameter(fields) for fields in extension().block_parameters(isa, op, quant_name, tokens))


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
