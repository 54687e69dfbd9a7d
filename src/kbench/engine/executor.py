"""Executes a list of calls: runs of native calls as one program each, everything else call by call.

Values live in one arena a device, whose offsets come from ``plan_arena``; native steps address it by offset, Python
implementations see it through views. Everything is bound once, so that a step only writes token ids and positions::

    calls     emb  norm  q k v  rope rope  attn  o  add  [a Python op]  norm  gate up  ...  lm_head
    segments  |------------ program 0 ------------------|   Python     |----- program 1 ----------|

With several devices the segments of each go to its queue, and halves of transfers stand between them (``schedule``).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kbench.core import CPU, INJECTED, Device, OpCall, Value
from kbench.kernels import (
    AnyArray,
    Cache,
    DeviceStep,
    PagedCache,
    Spans,
    StepState,
    TokenDraw,
    TorchCache,
    TorchDevice,
    implementation,
)
from kbench.model import Arena, plan_arena

from .drawing import DrawStep
from .fusion import FusedCall, OneOrTwo, as_laid_out, device_of, pairs, side_by_side
from .kept import EVERYTHING, EXPERTS, NOTHING, chosen_experts
from .kv_cache import KvCache
from .machine import Machine
from .native_run import NativeRun
from .operator_store import Bind
from .pipeline import digest
from .placed_caches import PlacedCaches, attention_devices
from .schedule import COMPUTE, RECEIVE, SEND, Item, schedule, source_of
from .space import ALIGNMENT, ELEMENT_BYTES, Slot, Space, TokenArray, Transfer
from .traffic import VALUES
from .weights import WeightStore


class Step(Protocol):
    """Something to do in a run. ``profile`` does it and returns the seconds of each of its calls."""

    def run(self, tokens: TokenArray, spans: Spans) -> None: ...

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]: ...


class Executable:
    """A list of calls bound to weights, caches and arenas, for up to ``max_tokens`` tokens a run.

    Attributes:
        calls: those that this process runs or receives values for, in the order in which it does.
        how: in words, how a step runs.
        draw: what ends a run with a token, if anything does.
    """

    how: str = "call by call"

    def __init__(
        self,
        calls: Sequence[OpCall],
        max_tokens: int,
        weights: WeightStore,
        cache: KvCache,
        machine: Machine,
        *,
        spans: int = 1,
        keep: str = NOTHING,
        bind: Bind | None = None,
        announce: Callable[[TokenArray, Spans], None] | None = None,
        draw: TokenDraw | None = None,
    ) -> None:
        """Binds ``calls``. ``spans``: sequences that a run has tokens of, at most. ``keep``: which values have bytes
        that nothing else is written to, so that ``values`` can show them after a run: all, or the experts that
        routers choose. ``bind`` finds the operators of calls that somebody else's code does. ``announce`` is called
        before each run: it has the other hosts run their part. ``draw`` ends each: of the logits, where they are."""
        self.max_tokens, self._weights, self._cache, self._machine, self._bind = (
            max_tokens, weights, cache, machine, bind,
        )  # fmt: skip
        self._max_spans = spans
        self.digest = digest(calls) if machine.devices.n_hosts > 1 else 0
        self._announce, self.draw = announce, draw
        items = side_by_side(schedule(calls, machine.devices), machine.devices)
        self.calls = tuple(item.call for item in items if item.what != SEND)
        self._layers = attention_devices(self.calls)
        self._slots, self._spaces = self._laid_out(items, keep)
        self._kept = chosen_experts(self.calls) if keep == EXPERTS else tuple(self._slots)
        self.n_bytes = sum(space.n_bytes for space in self._spaces.values())
        self._transfers: dict[int, Transfer] = {}
        # What this process ends with, if it is the one that samples.
        self._logits = self._slots.get("logits@cpu") or self._slots.get("logits")
        # Views of it by tokens. A step leaves nothing of Python in the processor's caches: making one takes 50 us then.
        self._shown: dict[int, npt.NDArray[np.float32]] = {}
        self._queued = any(machine.devices.has_own_queue(device) for device in self._spaces)
        self._steps = self._bound(items)

    def _laid_out(self, items: Sequence[Item], keep: str) -> tuple[dict[str, Slot], dict[Device, Space]]:
        return laid_out(items, self.max_tokens, self._machine, keep)

    def _bound(self, items: Iterable[Item]) -> list[Step]:
        steps: list[Step] = []
        run: list[OpCall] = []

        def finish() -> None:
            if run:
                steps.append(self._queue(run[0].device, self._native(run)))
                run.clear()

        listed = tuple(items)
        fused = pairs([item.call for item in listed], self._machine.devices)
        norms = set(fused.values())
        for index, item in enumerate(listed):
            call = item.call
            if index in norms:  # its sum's step does it
                continue
            native = item.what == COMPUTE and call.implementation.startswith("cpu.")
            if run and (not native or run[0].device != call.device):
                finish()
            if native:
                run.append(call)
            elif index in fused:
                both = call, listed[fused[index]].call
                two = [self._queue(call.device, self._python_call(part)) for part in both]
                one = _Queued(self._machine.queue(call.device), self._fused_call(*both))
                steps.append(OneOrTwo(one, two))
            elif item.what == COMPUTE:
                steps.append(self._queue(call.device, self._python_call(call)))
            else:
                steps.append(_Half(self._transfer(item), item.what))
        finish()
        if self.draw is not None:
            logits = self._slots["logits"]
            steps.append(self._queue(logits.space.device, DrawStep(self.draw, logits)))
        return steps

    def _native(self, calls: Sequence[OpCall]) -> NativeRun:
        device = calls[0].device
        space, caches = self._spaces[device], self._caches_on(device)
        offsets = {name: slot.offset for name, slot in self._slots.items() if slot.space is space}
        return NativeRun(
            calls, self.max_tokens, space.buffer, offsets, self._weights, caches, self._machine.pool(device),
            self._max_spans,
        )  # fmt: skip

    def _queue(self, device: Device, step: Step) -> Step:
        if not self._machine.devices.has_own_queue(device):
            return step
        return _Queued(self._machine.queue(device), step)

    def _transfer(self, item: Item) -> Transfer:
        if item.number not in self._transfers:
            src, call = source_of(item.call), item.call
            machine = self._machine
            self._transfers[item.number] = Transfer(
                call, item.number, self._slots, src, machine.traffic, machine.network
            )  # fmt: skip
        return self._transfers[item.number]

    def _caches_on(self, device: Device) -> Any:
        return self._cache.on(device) if isinstance(self._cache, PlacedCaches) else self._cache.caches

    def _python_call(self, call: OpCall) -> Step:
        caches = self._caches_on(call.device)
        item = device_of(call, self._machine.devices)
        if item is not None:
            tensors = {
                layer: TorchCache.over(cache) if isinstance(cache, Cache) else cache for layer, cache in caches.items()
            }
            return _TorchCall(call, self._slots, item, self._weights.of(call), tensors, self._on_device(call.device))
        return _PythonCall(call, self._slots, _runner(call, self._weights, caches, self._bind))

    def _fused_call(self, add: OpCall, norm: OpCall) -> FusedCall:
        item = device_of(add, self._machine.devices)
        kernel = None if item is None else item.residual_norm(norm)
        assert kernel is not None
        return FusedCall(add, norm, self._slots, kernel, self._weights.of(norm))

    def _on_device(self, device: Device) -> DeviceStep | None:
        """Where calls on ``device`` read token and position; None: on the host."""
        return None

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        """One step over ``tokens``, which belong where ``spans`` say."""
        self._begin_step(tokens, spans)
        for step in self._steps:
            step.run(tokens, spans)
        if self._queued:
            self._machine.drain()
        if self._machine.network is not None:
            self._machine.network.finish()

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]:
        """Like ``run``, but nothing runs beside something else; returns the seconds of each call, measured in place."""
        self._begin_step(tokens, spans)
        seconds: list[float] = []
        for step in self._steps:
            seconds += step.profile(tokens, spans)
        if self._machine.network is not None:
            self._machine.network.finish()
        return seconds

    def _begin_step(self, tokens: TokenArray, spans: Spans) -> None:
        if self._announce is not None:
            self._announce(tokens, spans)
        if isinstance(self._cache, PlacedCaches):
            self._cache.bring(self._layers, spans, self._machine.traffic)
        self._cache.begin_step(spans.tolist())
        if self.draw is not None:  # the token's id
            self._machine.traffic.add(VALUES, self._slots["logits"].space.device, CPU, ELEMENT_BYTES)

    def logits(self, n_tokens: int) -> npt.NDArray[np.float32]:
        """The last run's ``[rows, vocab]``: a view that the next run overwrites."""
        found = self._shown.get(n_tokens)
        if found is None:
            assert self._logits is not None
            found = self._shown[n_tokens] = self._logits.view(n_tokens)
        return found

    def values(self, n_tokens: int) -> dict[str, npt.NDArray[Any]]:
        """Copies of the values that were kept of the last run."""
        return {name: self._slots[name].copy(n_tokens) for name in self._kept}


def laid_out(
    items: Sequence[Item],
    max_tokens: int,
    machine: Machine,
    keep: str,
    alone: Collection[str] = (),
    pinned: bool = False,
) -> tuple[dict[str, Slot], dict[Device, Space]]:
    """A place for every value, in an arena for each device that makes or receives any.

    ``alone``: values whose bytes no other value ever has. ``pinned``: the CPU's arena is where GPUs copy from and to.
    """
    # A value that is sent is read on the sender's side, and made anew on the receiver's.
    halves = [
        dataclasses.replace(item.call, outputs=()) if item.what == SEND
        else dataclasses.replace(item.call, inputs=()) if item.what == RECEIVE
        else item.call
        for item in items
    ]  # fmt: skip
    halves = as_laid_out(halves, machine.devices)
    names = chosen_experts(item.call for item in items) if keep == EXPERTS else ()
    slots: dict[str, Slot] = {}
    spaces: dict[Device, Space] = {}
    for device in dict.fromkeys(call.device for call in halves if call.outputs):
        mine = [call for call in halves if call.device == device]
        if keep == EVERYTHING:
            arena = _apart([value for call in mine for value in call.outputs], max_tokens)
        else:
            shared = [_without(call, alone) for call in halves]
            arena = plan_arena(shared, max_tokens, device, names)
            apart = [value for call in mine for value in call.outputs if value.name in alone]
            rest = _apart(apart, max_tokens, arena.n_bytes + -arena.n_bytes % ALIGNMENT)
            arena = Arena({**arena.offsets, **rest.offsets}, rest.n_bytes if apart else arena.n_bytes)
        queue = machine.queue(device)
        space = spaces[device] = Space(device, machine.devices.physical(device), queue, arena.n_bytes, pinned)
        slots |= {v.name: Slot(space, arena.offsets[v.name], v) for call in mine for v in call.outputs}
    return slots, spaces


def _without(call: OpCall, names: Collection[str]) -> OpCall:
    """``call`` without those of its outputs."""
    kept = tuple(value for value in call.outputs if value.name not in names)
    return call if len(kept) == len(call.outputs) else dataclasses.replace(call, outputs=kept)


def _apart(values: Sequence[Value], max_tokens: int, end: int = 0) -> Arena:
    """``values`` one after the other from ``end`` on."""
    offsets = {}
    for value in values:
        offsets[value.name] = end
        size = (1 if value.rows == "one" else max_tokens) * value.width * ELEMENT_BYTES
        end += size + -size % ALIGNMENT
    return Arena(offsets, end)


class _Queued:
    """A step in a device's queue."""

    def __init__(self, queue: Any, step: Any) -> None:
        self._queue, self._step = queue, step

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        self._queue.submit(lambda: self._step.run(tokens, spans))

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]:
        found: list[float] = []
        started = time.perf_counter()
        self._queue.submit(lambda: found.extend(self._step.profile(tokens, spans)))
        self._queue.drain()
        # What a stream was told to do takes until it is drained.
        return [time.perf_counter() - started] if len(found) == 1 else found


class _Half:
    """One half of a transfer."""

    def __init__(self, transfer: Transfer, what: str) -> None:
        self._transfer, self._what = transfer, what
        self._do = transfer.send if what == SEND else transfer.receive

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        self._do(len(tokens))

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]:
        started = time.perf_counter()
        self._do(len(tokens))
        return [time.perf_counter() - started] if self._what == RECEIVE else []


class _TorchCall:
    """A call on tensors that stay on their device."""

    def __init__(
        self,
        call: OpCall,
        slots: dict[str, Slot],
        item: TorchDevice,
        prepared: Any,
        caches: dict[int, TorchCache | PagedCache],
        on_device: DeviceStep | None,
    ) -> None:
        self._call, self._item, self._prepared = call, item, prepared
        self._inputs = [slots[name] for name in call.inputs if name != "$tokens"]
        self._outputs = [slots[value.name] for value in call.outputs]
        self._state = StepState(np.zeros(0, np.int32), 0, caches, on_device=on_device)  # type: ignore[arg-type]

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        n_tokens = len(tokens)
        self._state.place(tokens, spans)
        inputs = [slot.tensor(n_tokens) for slot in self._inputs]
        for slot, result in zip(
            self._outputs, self._item.compute(self._call, self._prepared, inputs, self._state), strict=True
        ):
            slot.tensor(n_tokens).copy_(result)

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]:
        started = time.perf_counter()
        self.run(tokens, spans)
        return [time.perf_counter() - started]


# Runs a call on (tokens, spans, inputs) and returns its outputs.
_Runner = Callable[[TokenArray, Spans, Sequence[AnyArray]], Sequence[AnyArray]]


def _runner(call: OpCall, weights: WeightStore, caches: Any, bind: Bind | None) -> _Runner:
    if call.op == INJECTED:
        assert bind is not None
        return bind(call, caches).run
    item, prepared, threads = implementation(call.implementation), weights.of(call), call.threads or 1
    state = StepState(np.zeros(0, np.int32), 0, caches)

    def run(tokens: TokenArray, spans: Spans, inputs: Sequence[AnyArray]) -> Sequence[AnyArray]:
        state.place(tokens, spans)
        return item.run(call, prepared, inputs, state, threads)

    return run


class _PythonCall:
    """A call without native steps: inputs are views, outputs are copied into the arena."""

    def __init__(self, call: OpCall, slots: dict[str, Slot], runner: _Runner) -> None:
        self._runner = runner
        self._inputs = [None if name == "$tokens" else slots[name] for name in call.inputs]
        self._outputs = [slots[value.name] for value in call.outputs]

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        n_tokens = len(tokens)
        inputs: list[AnyArray] = [tokens if slot is None else slot.view(n_tokens) for slot in self._inputs]
        for slot, result in zip(self._outputs, self._runner(tokens, spans, inputs), strict=True):
            np.copyto(slot.view(n_tokens), result, casting="same_kind")

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]:
        started = time.perf_counter()
        self.run(tokens, spans)
        return [time.perf_counter() - started]
