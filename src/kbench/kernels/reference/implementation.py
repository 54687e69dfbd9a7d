"""The implementation ``reference``: the truth in float32, on weights dequantised once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbench.core import Block, OpCall, Problem

from ..block_parameters import BlockParameter
from ..cache import refusal
from ..implementation import YES, AnyArray, Prepared, StepState, Support, WeightData
from .functions import FUNCTIONS
from .tensor import Tensor


@dataclass(frozen=True, slots=True)
class Dequantized:
    """Weights as numbers, in the order of ``OpCall.weights``."""

    tensors: tuple[Tensor, ...]

    @property
    def n_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)


class ReferenceImplementation:
    """Runs every operation by its definition in numpy; ``dtype`` float64 gives the truth that others are held to."""

    device_kind = "cpu"

    def __init__(self, dtype: npt.DTypeLike = np.float32) -> None:
        self.name = "reference"
        self.dtype = np.dtype(dtype)
        self.summary = f"the definition of every op in numpy, {self.dtype.name}, weights dequantised once"

    def runnable(self) -> Support:
        return YES

    def supports(self, problem: Problem) -> Support:
        refused = refusal(problem)
        return Support(False, refused) if refused else YES

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        return ()

    def capturable(self, problem: Problem) -> Support:
        return Support(False, "numpy, which needs Python")

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> Dequantized:
        # Of an embedding a few rows are read per call: dequantising all of them would cost gigabytes for nothing.
        keep = problem.op != "embedding"
        return Dequantized(tuple(Tensor(weight, self.dtype, keep=keep) for weight in weights))

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        assert isinstance(prepared, Dequantized)
        exact = [a if a.dtype.kind == "i" else a.astype(self.dtype, copy=False) for a in inputs]
        outputs = FUNCTIONS[call.op](call, prepared.tensors, exact, state)
        return [a if a.dtype.kind == "i" else a.astype(self.dtype, copy=False) for a in outputs]
