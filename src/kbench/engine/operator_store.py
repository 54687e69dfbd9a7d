"""Somebody's own operators of one model: found, made, loaded, and run between native programs.

calls     norm  q k v  attention  o  add  norm  [mypackage.MyMLP]  add  norm ...
segments  |----------- program 0 ---------------|      Python      |-- program 1 --
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kbench.core import AUTO, INJECTED, Assignment, Module, OpCall, Phase, Placement, UserError, is_injected
from kbench.kernels import AnyArray, Cache, Spans, StepState, implementation
from kbench.model import ModelDescriptor, boundary

from .injected_operator import InjectedOperator
from .operator_import import import_operator
from .original_module import OriginalModule
from .tensor_loader import TensorLoader
from .weights import WeightStore

# Lowers the model under an assignment for (phase, "last" or "all" logits) to calls that run here.
Lower = Callable[[Assignment, Phase, str], Sequence[OpCall]]


class OperatorStore:
    """The operators that ``assignment`` names, one object a module."""

    def __init__(
        self,
        descriptor: ModelDescriptor,
        tree: Module,
        assignment: Assignment,
        weights: WeightStore,
        lower: Lower,
        *,
        trust: Iterable[str] = (),
        threads: int = 1,
    ) -> None:
        """Imports every operator that is named, as far as that is allowed; makes none yet.

        Raises:
            UserError: an operator that is not trusted, cannot be imported, or is none.
        """
        self._descriptor, self._assignment, self._weights = descriptor, assignment, weights
        self._lower, self._threads = lower, threads
        self._modules = {module.name: module for module in tree.walk()}
        self.tensors = TensorLoader(weights.gguf, tree)
        self._made: dict[tuple[str, str], InjectedOperator] = {}
        self._lowered: dict[tuple[int, Phase, str], Sequence[OpCall]] = {}
        self._originals: dict[tuple[str, str, Phase, str], _Original] = {}
        self._step = _Step(Phase.DECODE, "last", StepState(np.zeros(0, np.int32)))
        trusted = tuple(trust)
        self._named = {
            (name, dotted): import_operator(dotted, trusted, where=name)
            for name, placement in assignment.items()
            if name in self._modules and name
            for dotted in dict.fromkeys((placement.generate_op, placement.prefill_op))
            if is_injected(dotted)
        }

    def load(self) -> float:
        """Makes every operator and calls its ``load``; returns the seconds that took.

        Raises:
            UserError: a rule's kwargs that the operator does not take.
        """
        begin = time.perf_counter()
        for (name, dotted), kind in self._named.items():
            self._made[name, dotted] = self._make(name, dotted, kind)
        for made in self._made.values():
            made.load()
        return time.perf_counter() - begin

    def _make(self, name: str, dotted: str, kind: type[InjectedOperator]) -> InjectedOperator:
        placement = self._assignment[name]
        original = OriginalModule(self._modules[name], self, name)
        fixed: dict[str, Any] = {
            "key": name,
            "gguf_loader": self.tensors,
            "config": self._descriptor,
            "orig_module": original,
            "prefill_device": str(placement.prefill_device),
            "generate_device": str(placement.generate_device),
        }
        try:
            inspect.signature(kind).bind(**fixed, **placement.kwargs)
            made = kind(**fixed, **placement.kwargs)
        except (TypeError, ValueError) as error:
            given = f" from kwargs {', '.join(map(str, placement.kwargs))}" if placement.kwargs else ""
            raise UserError(f"{dotted} cannot be made{given}: {error}", where=name) from error
        if made.__dict__.get("orig_module") is not original:
            raise UserError(f"{dotted}'s __init__ does not call InjectedOperator.__init__", where=name)
        return made

    @property
    def by_module(self) -> dict[str, InjectedOperator]:
        """Operators by the module that each replaces; of two for the two phases, that of decode."""
        found: dict[str, InjectedOperator] = {}
        for (name, _), made in self._made.items():  # decode's was made first
            found.setdefault(name, made)
        return found

    def run(self, call: OpCall, inputs: Sequence[AnyArray], phase: Phase, state: StepState) -> list[npt.NDArray[Any]]:
        """Runs the operator of ``call``; its outputs, checked for number, shape and type."""
        operator = self._made[call.module, call.implementation]
        logits = "last" if any(value.rows == "one" for value in call.outputs) else "all"
        before, self._step = self._step, _Step(phase, logits, state)
        operator.phase, operator.state = phase, state
        try:
            returned = operator.forward(*inputs)
        finally:
            self._step = before
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        if len(results) != len(call.outputs):
            names = ", ".join(value.name for value in call.outputs)
            raise UserError(f"{call.implementation} returned {len(results)} arrays", where=call.module, accepted=names)
        arrays = [np.asarray(result) for result in results]
        for array, value in zip(arrays, call.outputs, strict=True):
            expected = (1 if value.rows == "one" else len(state.tokens), value.width)
            if array.shape != expected:
                shapes = f"{array.shape}, expected {expected}"
                raise UserError(f"{call.implementation} returned an array of shape {shapes}", where=call.module)
            wanted = np.dtype(np.int32 if value.dtype == "i32" else np.float32)
            if not np.can_cast(array.dtype, wanted, "same_kind"):  # ids and weights in the wrong order, say
                types = f"{array.dtype}, expected {wanted}"
                raise UserError(f"{call.implementation} returned an array of {types}", where=call.module)
        return arrays

    def below(self, module: Module, above: str) -> InjectedOperator | OriginalModule:
        """What an operator finds under the name of a module below the one that it replaces."""
        dotted = self._assignment.get(module.name, Placement()).implementation(self._step.phase)
        return self._made.get((module.name, dotted)) or OriginalModule(module, self, above)

    def run_original(self, name: str, above: str, inputs: Sequence[AnyArray]) -> list[AnyArray]:
        """Runs module ``name``, which is the replaced module ``above`` or lies in it, without that operator."""
        step = self._step
        key = (name, above, step.phase, step.logits)
        if key not in self._originals:
            self._originals[key] = self._original(*key)
        original = self._originals[key]
        if len(inputs) != len(original.inputs):
            raise UserError(f"{len(inputs)} inputs", where=name, accepted=f"{', '.join(original.inputs)}")
        values: dict[str, AnyArray] = dict(zip(original.inputs, inputs, strict=True))
        for call in original.calls:
            arguments = [values[_home(argument)] for argument in call.inputs]
            if call.op == "transfer":
                results: Sequence[AnyArray] = arguments
            elif call.op == INJECTED:
                results = self.run(call, arguments, step.phase, step.state)
            else:
                item, threads = implementation(call.implementation), call.threads or self._threads
                results = item.run(call, self._weights.of(call), arguments, step.state, threads)
            values |= {_home(value.name): result for value, result in zip(call.outputs, results, strict=True)}
        return [values[value] for value in original.outputs]

    def _original(self, name: str, above: str, phase: Phase, logits: str) -> _Original:
        level = sum(above.startswith(f"{other}.") for other in self._replaced(phase))
        every = self._calls(level, phase, logits)
        inside = [
            index for index, call in enumerate(every) if call.module == name or call.module.startswith(f"{name}.")
        ]
        if not inside or inside[-1] - inside[0] + 1 != len(inside):
            why = "does no work of its own" if not inside else "is used at several places"
            raise UserError(f"a module that {why} cannot be run by itself", where=name, todo="run the module above it")
        calls = [every[index] for index in inside]
        self._weights.prepare(calls)
        inputs, outputs = boundary(calls, [*every[: inside[0]], *every[inside[-1] + 1 :]])
        names = dict.fromkeys(_home(value.name) for value in outputs)
        return _Original(calls, tuple(dict.fromkeys(map(_home, inputs))), tuple(names))

    def _replaced(self, phase: Phase) -> list[str]:
        return [name for name, place in self._assignment.items() if name and is_injected(place.implementation(phase))]

    def _calls(self, level: int, phase: Phase, logits: str) -> Sequence[OpCall]:
        """The model's calls without the operators that lie in at most ``level`` others."""
        if (level, phase, logits) not in self._lowered:
            replaced = self._replaced(phase)
            plain = dict(self._assignment)
            for name in replaced:
                if sum(name.startswith(f"{other}.") for other in replaced) <= level:
                    plain[name] = dataclasses.replace(plain[name], generate_op=AUTO, prefill_op=AUTO)
            self._lowered[level, phase, logits] = self._lower(plain, phase, logits)
        return self._lowered[level, phase, logits]

    def bind(self, phase: Phase) -> Bind:
        """What binds calls to operators in programs of ``phase``."""
        return lambda call, caches: InjectedCall(self, call, phase, caches)


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    phase: Phase
    logits: str
    state: StepState


@dataclasses.dataclass(frozen=True, slots=True)
class _Original:
    calls: Sequence[OpCall]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _home(name: str) -> str:
    """A value's name without the device that it was moved to: here every value is in the same memory."""
    return name.partition("@")[0]


class InjectedCall:
    """A call of somebody's own operator."""

    def __init__(self, store: OperatorStore, call: OpCall, phase: Phase, caches: Mapping[int, Cache]) -> None:
        self._store, self._call, self._phase = store, call, phase
        self._state = StepState(np.zeros(0, np.int32), 0, caches)

    def run(self, tokens: npt.NDArray[np.int32], spans: Spans, inputs: Sequence[AnyArray]) -> list[npt.NDArray[Any]]:
        self._state.place(tokens, spans)
        return self._store.run(self._call, inputs, self._phase, self._state)


class Bind(Protocol):
    """Binds a call to its operator; ``caches`` are those that the call may read."""

    def __call__(self, call: OpCall, caches: Mapping[int, Cache]) -> InjectedCall: ...
