"""A decode step over several devices that runs by a plan: captured as one CUDA graph, or with a thread for each lane.

Against an ``Executable``, whose calls Python issues one by one at every step, everything is bound once: values that
cross have places of their own, and token and position lie on the devices, so that a step is written, started, and
waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kbench.core import CPU, Device, OpCall
from kbench.kernels import DeviceStep, Spans, TokenDraw

from .capture import uncaptured
from .drawing import DrawStep
from .executor import Executable, Step, laid_out
from .fusion import FusedCall, pairs
from .kv_cache import KvCache
from .machine import Machine
from .operator_store import Bind
from .plan_threads import Body, ThreadedPlan
from .schedule import COMPUTE, SEND, Item, schedule
from .space import Slot, Space, TokenArray
from .step_plan import COPY, RUN, Action, Place, StepPlan, lasting, step_plan
from .traffic import VALUES
from .weights import WeightStore

ONE_TOKEN = 1


def why_not_planned(calls: Sequence[OpCall], machine: Machine, sequences: int) -> str:
    """Why a decode step of ``calls`` is issued call by call; empty: it runs by a plan."""
    devices = machine.devices
    lanes = {item.call.device for item in schedule(calls, devices)}
    if devices.n_hosts > 1:
        return "it runs on several hosts"
    if not any(devices.has_own_queue(device) for device in lanes):
        return "it runs on the CPU alone"
    if sequences > 1:
        return "its positions in several sequences are told by the host"
    physical = {devices.physical(device) for device in lanes} - {CPU}
    if len(physical) > 1:
        return "one graph does not hold several GPUs"
    found = uncaptured(calls) if physical else []
    return f"{found[0].module}: {found[0].reason}" if found else ""


class PlannedExecutable(Executable):
    """An ``Executable`` for one token of sequence 0, where ``why_not_planned`` has no reason.

    Attributes:
        plan: what each lane does.
        runner: what runs it.
    """

    plan: StepPlan
    runner: Any

    @property
    def how(self) -> str:  # type: ignore[override]
        return f"by a plan, {self.runner.how}"

    def __init__(
        self,
        calls: Sequence[OpCall],
        weights: WeightStore,
        cache: KvCache,
        machine: Machine,
        bind: Bind | None = None,
        draw: TokenDraw | None = None,
    ) -> None:
        """Errors as for ``Executable``."""
        self._plain: Executable | None = None
        self._made_of = calls, weights, cache, machine, bind
        super().__init__(calls, ONE_TOKEN, weights, cache, machine, bind=bind, draw=draw)

    def _laid_out(self, items: Sequence[Item], keep: str) -> tuple[dict[str, Slot], dict[Device, Space]]:
        self._items = tuple(items)
        return laid_out(items, ONE_TOKEN, self._machine, keep, lasting(items), pinned=self._on_cuda(items))

    def _on_cuda(self, items: Iterable[Item]) -> bool:
        devices = self._machine.devices
        return any(devices.physical(item.call.device) != CPU for item in items)

    def _bound(self, items: Iterable[Item]) -> list[Step]:
        items = tuple(items)
        places = {
            name: Place(slot.space.device, slot.offset, slot.offset + slot.n_bytes(ONE_TOKEN))
            for name, slot in self._slots.items()
        }
        self.plan = step_plan(items, places)
        self._states: dict[Device, DeviceStep] = {}
        self._tokens, self._where = np.zeros(1, np.int32), np.array([(0, 0, 1)], np.int64)
        computed = {item.number: item.call for item in items if item.what == COMPUTE}
        moved = {item.number: item.call for item in items if item.what == SEND}
        bodies: dict[int, Body] = {}
        self._natives: dict[int, list[Any]] = {}
        for index, action in enumerate(self.plan.actions):
            if action.what == RUN:
                steps = self._steps_of([computed[number] for number in action.calls])
                bodies[index] = self._body(steps)
                self._natives[index] = steps
            elif action.what == COPY:
                bodies[index] = self._copy(action)
        self._moves = [
            (Device.parse(call.problem.text("src")), call.device, self._slots[call.inputs[0]].n_bytes(ONE_TOKEN))
            for call in moved.values()
        ]
        if self.draw is not None:  # behind the logits, which are the last that their lane makes
            end = DrawStep(self.draw, self._slots["logits"])
            last = max(i for i, a in enumerate(self.plan.actions) if any(t.value == "logits" for t in a.touches))
            bodies[last] = _after(bodies[last], self._body([end]))
        self.runner = self._runner(bodies)
        return []

    def _steps_of(self, calls: Sequence[OpCall]) -> list[Step | FusedCall]:
        """``calls``, of one device: native ones in a row as one program, a sum and its norm as one call."""
        steps: list[Step | FusedCall] = []
        run: list[OpCall] = []
        fused = pairs(calls, self._machine.devices)
        norms = set(fused.values())
        for index, call in enumerate([*calls, None]):
            if call is not None and call.implementation.startswith("cpu."):
                run.append(call)
                continue
            if run:
                steps.append(self._native(run))
                run = []
            if call is not None and index in fused:
                steps.append(self._fused_call(call, calls[fused[index]]))
            elif call is not None and index not in norms:
                steps.append(self._python_call(call))
        return steps

    def _body(self, steps: Sequence[Step | FusedCall]) -> Body:
        tokens, where = self._tokens, self._where

        def body() -> None:
            for step in steps:
                step.run(tokens, where)

        return body

    def _copy(self, action: Action) -> Body:
        source, target = (self._slots[touch.value] for touch in action.touches)
        if source.space.in_host_memory and target.space.in_host_memory:
            here, there = source.view(ONE_TOKEN), target.view(ONE_TOKEN)
            return lambda: np.copyto(there, here)
        return lambda: _copied(target.tensor(ONE_TOKEN), source.tensor(ONE_TOKEN))

    def _runner(self, bodies: dict[int, Body]) -> Any:
        lanes = self.plan.lanes
        for lane in lanes:
            if lane in self._states:  # token and position come with a lane's first action
                first = next(i for i, a in enumerate(self.plan.actions) if a.lane == lane and i in bodies)
                bodies[first] = _after(self._states[lane].bring, bodies[first])
        if self._on_cuda(self._items):
            from .plan_cuda import CudaPlan

            launches = {
                index: steps for index, steps in self._natives.items() if self.plan.actions[index].lane == CPU
            }  # fmt: skip
            return CudaPlan(self.plan, bodies, launches, self._machine, self._tokens, self._where)
        queues = {lane: self._machine.queue(lane) for lane in lanes if lane != CPU}
        return ThreadedPlan(self.plan, bodies, queues, CPU)

    def _on_device(self, device: Device) -> DeviceStep:
        if device not in self._states:
            self._states[device] = DeviceStep.on(str(self._machine.devices.physical(device)))
        return self._states[device]

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        self._begin_step(tokens, spans)
        self._tokens[:], self._where[:] = tokens, spans
        for state in self._states.values():
            state.write(tokens, int(spans[0, 1]))
        self.runner.run()
        for src, dst, n_bytes in self._moves:
            self._machine.traffic.add(VALUES, src, dst, n_bytes)

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]:
        """Call by call, in another executable: what a plan does at once has no seconds of its own."""
        if self._plain is None:
            calls, weights, cache, machine, bind = self._made_of
            self._plain = Executable(calls, ONE_TOKEN, weights, cache, machine, bind=bind)
        return self._plain.profile(tokens, spans)


def _copied(target: Any, source: Any) -> None:
    target.copy_(source, non_blocking=True)


def _after(first: Callable[[], None], then: Body) -> Body:
    def body() -> None:
        first()
        then()

    return body
