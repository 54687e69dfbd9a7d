"""The optimisation ladder: implementations ``ladder.*``, teaching material to read (``csrc/ladder/``) and to measure.

They are asked for by name only: ``best``, ``candidates`` and the tuner never see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kbench.core import Block, OpCall, Problem, Unsupported, allowed_cpus, physical_cores

from ..block_parameters import BlockParameter
from ..implementation import YES, AnyArray, Implementation, Prepared, StepState, Support, WeightData
from .extension import extension, pool

if TYPE_CHECKING:
    from ._native import LadderMatrix, Pool


@dataclass(frozen=True, slots=True)
class NoWeights:
    """What an operation without weights has prepared."""

    n_bytes: int = 0


class LadderItem:
    """What all have in common."""

    device_kind = "cpu"

    def __init__(self, name: str, summary: str, missing: str = "") -> None:
        """``missing`` says why it cannot run here; empty when it can."""
        self.name, self.summary, self._missing = f"ladder.{name}", summary, missing

    def runnable(self) -> Support:
        return Support(False, self._missing) if self._missing else YES

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        return ()

    def capturable(self, problem: Problem) -> Support:
        return Support(False, "teaching material runs call by call")


class LinearStep(LadderItem):
    """A step of the ladder proper: ``linear`` without a bias, weights F32 or Q8_0.

    Args:
        step: its name in the native module.
        quant: its weights' type.
        int8: whether it rounds activations to int8.
        pick: the threads to run on, whatever the caller asks for; None: what the caller asks for.
    """

    def __init__(
        self,
        name: str,
        step: str,
        summary: str,
        quant: str,
        int8: bool,
        missing: str = "",
        pick: Callable[[], Pool] | None = None,
    ) -> None:
        super().__init__(name, summary, missing)
        self._step, self._quant, self._int8, self._pick = step, quant, int8, pick

    def accuracy(self, problem: Problem) -> str:
        """What products are made of: see ``tolerance``."""
        return "int8" if self._int8 else "f32"

    def supports(self, problem: Problem) -> Support:
        if problem.op != "linear" or problem.text("quant") != self._quant:
            return Support(False, f"{self.name} does linear with {self._quant} weights only")
        return YES

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> LadderMatrix:
        """Keeps the stored bytes; steps that want them in another order sort a copy.

        Raises:
            Unsupported: a bias.
        """
        if len(weights) != 1:
            raise Unsupported(f"{self.name} takes no bias")
        n, k = problem.integer("n"), problem.integer("k")
        raw = np.ascontiguousarray(weights[0].raw)
        made: LadderMatrix = extension().LadderMatrix(self._step, raw, n, k, pool())
        return made

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        x = np.ascontiguousarray(inputs[0], np.float32)
        y = np.empty((len(x), call.problem.integer("n")), np.float32)
        matrix: Any = prepared
        matrix.run(x, y, self._pick() if self._pick is not None else pool(threads))
        return [y]


class AttentionPair(LadderItem):
    """``attention`` of one token over a float32 cache, threads sharing whole heads or parts of every head's cache."""

    def __init__(self, name: str, summary: str, split: bool) -> None:
        super().__init__(name, summary)
        self._split = split

    def supports(self, problem: Problem) -> Support:
        one = problem.op == "attention" and problem.text("kv") == "f32" and problem.integer("tokens") == 1
        if one and not problem.integer("window"):
            return YES
        return Support(False, f"{self.name} does attention of one token over a f32 cache, without a window, only")

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> NoWeights:
        return NoWeights()

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        q, k, v = (np.ascontiguousarray(a, np.float32).reshape(-1) for a in inputs)
        cache = state.caches[int(call.attrs.get("layer", 0))]  # type: ignore[arg-type]
        y = np.empty_like(q)
        scale = float(call.attrs.get("scale", 1 / math.sqrt(call.problem.integer("d"))))  # type: ignore[arg-type]
        keys, values = cache.k[0], cache.v[0]
        extension().ladder_attention(self._split, q, k, v, keys, values, state.position, scale, y, pool(threads))
        return [y.reshape(1, -1)]


class SortPair(LadderItem):
    """``top_logits`` by sorting all logits or only as far as needed; one thread."""

    def __init__(self, name: str, summary: str, partial: bool) -> None:
        super().__init__(name, summary)
        self._partial = partial

    def supports(self, problem: Problem) -> Support:
        return YES if problem.op == "top_logits" else Support(False, f"{self.name} does top_logits only")

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> NoWeights:
        return NoWeights()

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        rows = np.ascontiguousarray(inputs[0], np.float32)
        shape = (len(rows), call.problem.integer("top_k"))
        ids, values = np.empty(shape, np.int32), np.empty(shape, np.float32)
        for row, row_ids, row_values in zip(rows, ids, values, strict=True):
            extension().ladder_top_logits(self._partial, row, row_ids, row_values)
        return [ids, values]


def ladder_implementations() -> tuple[Implementation, ...]:
    """Every step in the ladder's order, then the pairs beside it.

    Raises:
        NativeMissing: the extension is not built.
    """
    native = extension()
    missing = dict(native.isas())
    steps = [
        LinearStep(step, step, change, quant, int8, missing.get(isa, "not x86-64"))
        for step, change, isa, quant, int8 in native.ladder_steps()
    ]
    n_cores, n_logical = physical_cores(), len(allowed_cpus())
    no_smt = "" if n_cores < n_logical else "every core here has one thread (no SMT)"
    last, change = "prefetched", "as ladder.prefetched, one thread for each"
    no_kernel = missing.get("avx2", "not x86-64") or no_smt
    threads = [
        LinearStep("logical_cores", last, f"{change} processor that the system shows", "Q8_0", True, no_kernel,
                   lambda: pool(n_logical)),
        LinearStep("physical_cores", last, f"{change} physical core", "Q8_0", True, no_kernel, lambda: pool(n_cores)),
    ]  # fmt: skip
    return (
        *steps,
        *threads,
        AttentionPair("whole_heads", "each thread takes whole key/value heads", False),
        AttentionPair("split_kv", "each thread takes a part of every head's cache", True),
        SortPair("full_sort", "all logits in order", False),
        SortPair("partial_sort", "in order only as far as needed", True),
    )
