"""Executes a list of calls: runs of native calls as one program each, everything else call by call.

Values live in one arena whose offsets come from ``plan_arena``; native steps address it by offset, Python
implementations see it through numpy views. Everything is bound once, so that a step only writes token ids and a
position::

    calls     emb  norm  q k v  rope rope  attn  o  add  [a Python op]  norm  gate up  ...  lm_head
    segments  |------------ program 0 ------------------|   Python     |----- program 1 ----------|
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import INJECTED, OpCall, Value
from kbench.kernels import AnyArray, Cache, StepState, implementation
from kbench.model import Arena, plan_arena

from .native_run import NativeRun
from .operator_store import Bind
from .weights import WeightStore

TokenArray = npt.NDArray[np.int32]
# A cache line, and the widest vector register: what native kernels require of the arena.
ALIGNMENT = 64
# float32 and int32: the only types that values have.
_ELEMENT_BYTES = 4
_DTYPES: dict[str, type[np.generic]] = {"f32": np.float32, "i32": np.int32}


def aligned_buffer(n_bytes: int) -> npt.NDArray[np.uint8]:
    """``n_bytes`` of zeros that start at a multiple of the arena's alignment."""
    raw = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + n_bytes]


class Executable:
    """A list of calls bound to weights, caches and an arena, for up to ``max_tokens`` tokens a run."""

    def __init__(
        self,
        calls: Sequence[OpCall],
        max_tokens: int,
        weights: WeightStore,
        caches: Mapping[int, Cache],
        pool: Callable[[], Any],
        *,
        keep_all: bool = False,
        bind: Bind | None = None,
    ) -> None:
        """Binds ``calls``, each with its thread count. ``pool`` makes (once) the native thread pool, and is called only
        where a call needs it. ``keep_all`` gives every value bytes of its own, so that ``values`` can show them after a
        run. ``bind`` finds the operators of calls that somebody else's code does."""
        self.calls, self.max_tokens = tuple(calls), max_tokens
        arena = _apart(calls, max_tokens) if keep_all else plan_arena(calls, max_tokens)
        self.n_bytes = arena.n_bytes
        self._buffer = aligned_buffer(arena.n_bytes)
        slots = {
            value.name: _Slot(self._buffer, arena.offsets[value.name], value)
            for call in calls
            for value in call.outputs
        }
        self._segments: list[NativeRun | _PythonCall] = []
        run: list[OpCall] = []

        def finish() -> None:
            if run:
                self._segments.append(NativeRun(run, max_tokens, self._buffer, arena.offsets, weights, caches, pool()))
                run.clear()

        for call in calls:
            if call.implementation.startswith("cpu."):
                run.append(call)
            else:
                finish()
                self._segments.append(_PythonCall(call, slots, _runner(call, weights, caches, bind)))
        finish()
        self._slots = slots
        self._logits = slots["logits"]

    def run(self, tokens: TokenArray, position: int) -> None:
        """One step over ``tokens``, the first of which has ``position`` tokens before it."""
        for segment in self._segments:
            segment.run(tokens, position)

    def profile(self, tokens: TokenArray, position: int) -> list[float]:
        """Like ``run``; returns the seconds of each call, measured in place."""
        seconds: list[float] = []
        for segment in self._segments:
            seconds += segment.profile(tokens, position)
        return seconds

    def logits(self, n_tokens: int) -> npt.NDArray[np.float32]:
        """The last run's ``[rows, vocab]``: a view that the next run overwrites."""
        return self._logits.view(n_tokens)

    def values(self, n_tokens: int) -> dict[str, npt.NDArray[Any]]:
        """Copies of every value of the last run; meaningful with ``keep_all`` only."""
        return {name: slot.view(n_tokens).copy() for name, slot in self._slots.items()}


def _apart(calls: Sequence[OpCall], max_tokens: int) -> Arena:
    offsets, end = {}, 0
    for value in (value for call in calls for value in call.outputs):
        offsets[value.name] = end
        size = (1 if value.rows == "one" else max_tokens) * value.width * _ELEMENT_BYTES
        end += size + -size % ALIGNMENT
    return Arena(offsets, end)


@dataclass(slots=True)
class _Slot:
    """A value's place in the arena."""

    buffer: npt.NDArray[np.uint8]
    offset: int
    value: Value

    def view(self, n_tokens: int) -> npt.NDArray[Any]:
        rows = 1 if self.value.rows == "one" else n_tokens
        n_bytes = rows * self.value.width * _ELEMENT_BYTES
        flat = self.buffer[self.offset : self.offset + n_bytes].view(_DTYPES[self.value.dtype])
        return flat.reshape(rows, self.value.width)


# Runs a call on (tokens, position, inputs) and returns its outputs.
_Runner = Callable[[TokenArray, int, Sequence[AnyArray]], Sequence[AnyArray]]


def _runner(call: OpCall, weights: WeightStore, caches: Mapping[int, Cache], bind: Bind | None) -> _Runner:
    if call.op == INJECTED:
        assert bind is not None
        return bind(call, caches).run
    item, prepared, threads = implementation(call.implementation), weights.of(call), call.threads or 1
    state = StepState(np.zeros(0, np.int32), 0, caches)

    def run(tokens: TokenArray, position: int, inputs: Sequence[AnyArray]) -> Sequence[AnyArray]:
        state.tokens, state.position = tokens, position
        return item.run(call, prepared, inputs, state, threads)

    return run


class _PythonCall:
    """A call without native steps: inputs are views, outputs are copied into the arena."""

    def __init__(self, call: OpCall, slots: Mapping[str, _Slot], runner: _Runner) -> None:
        self._runner = runner
        self._inputs = [None if name == "$tokens" else slots[name] for name in call.inputs]
        self._outputs = [slots[value.name] for value in call.outputs]

    def run(self, tokens: TokenArray, position: int) -> None:
        n_tokens = len(tokens)
        inputs: list[AnyArray] = [tokens if slot is None else slot.view(n_tokens) for slot in self._inputs]
        for slot, result in zip(self._outputs, self._runner(tokens, position, inputs), strict=True):
            np.copyto(slot.view(n_tokens), result, casting="same_kind")

    def profile(self, tokens: TokenArray, position: int) -> list[float]:
        started = time.perf_counter()
        self.run(tokens, position)
        return [time.perf_counter() - started]
