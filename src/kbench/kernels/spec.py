"""What one operation means, in one place: the oracle test, the benchmark and dispatch all read it here."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbench.core import OPS, OpCall, Problem, UserError, Work, did_you_mean, work

from .check import Verdict, check
from .example import Example, example
from .implementation import AnyArray, StepState, WeightData
from .reference import FUNCTIONS, ReferenceImplementation
from .tolerance import accuracy_of


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Operation ``op``: its parameters, meaning, tolerance, work and example calls."""

    op: str
    params: tuple[str, ...]

    def work(self, problem: Problem) -> Work:
        """FLOPs, bytes and elements of one call."""
        return work(problem)

    def example(self, problem: Problem, rng: np.random.Generator, *, expert_subset: int | None = None) -> Example:
        """A call with seeded random weights, inputs and caches; see ``example``."""
        return example(problem, rng, expert_subset=expert_subset)

    def reference(
        self,
        call: OpCall,
        weights: Sequence[WeightData],
        inputs: Sequence[AnyArray],
        state: StepState,
        dtype: npt.DTypeLike = np.float64,
    ) -> list[AnyArray]:
        """The outputs by definition, computed in ``dtype`` (float32 or float64) on dequantised weights."""
        truth = ReferenceImplementation(dtype)
        return truth.run(call, truth.prepare(call.problem, weights), inputs, state, 1)

    def check(self, implementation: object, example: Example, outputs: Sequence[AnyArray]) -> Verdict:
        """Whether an implementation's ``outputs`` of ``example`` lie within the bounds of its accuracy class."""
        accuracy = accuracy_of(implementation, example.call.problem, example.call.block)
        return check(example.call, example.weights, example.inputs, example.state, outputs, accuracy)

    @property
    def hash(self) -> str:
        """Changes with the operation's parameters or definition: a record made under another hash is stale."""
        text = f"{self.op}({','.join(self.params)})\n{inspect.getsource(FUNCTIONS[self.op])}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def op_spec(op: str) -> OpSpec:
    """The spec of ``op``.

    Raises:
        UserError: there is no such operation.
    """
    if op not in OPS:
        raise UserError(f"unknown op {op!r}", accepted=", ".join(OPS), todo=did_you_mean(op, OPS))
    return OpSpec(op, OPS[op])
