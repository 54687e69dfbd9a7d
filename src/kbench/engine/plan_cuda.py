"""Runs a step's plan on one CUDA device, as a graph: kernels, copies, and the CPU's programs as host functions.

Every lane is a stream, the CPU's too: what is queued there are host functions, which the driver calls when the events
that they wait for have come, in a thread of its own, while kernels of other streams go on. The functions are native: a
host function that wanted Python's lock could wait for a thread that holds it and waits for the driver.

The first step is issued without a graph: kernels are compiled and constants made, which no capture allows. The second
is captured; from then on a step is one launch. Where the driver refuses the capture every step is issued like the
first, and ``refused`` says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from kbench.core import CPU, Device, InvalidEnvironment

from .machine import Machine
from .native_run import NativeRun
from .plan_threads import Body
from .queues import CudaQueue
from .space import TokenArray
from .step_plan import RECORD, WAIT, StepPlan


class CudaPlan:
    """A plan with what each run and copy does.

    Attributes:
        refused: why there is no graph; empty while there is or may be one.
    """

    def __init__(
        self,
        plan: StepPlan,
        bodies: Mapping[int, Body],
        natives: Mapping[int, Sequence[NativeRun]],
        machine: Machine,
        tokens: TokenArray,
        where: Any,
    ) -> None:
        """``natives``: the programs of the CPU's runs, by their place in the plan. ``tokens``, ``where``: the arrays
        that each step is written to."""
        import torch

        self._torch, self.plan, self._bodies = torch, plan, bodies
        gpus = [lane for lane in plan.lanes if lane != CPU]
        queues = {lane: machine.queue(lane) for lane in gpus}
        assert all(isinstance(queue, CudaQueue) for queue in queues.values())
        self._streams: dict[Device, Any] = {lane: queue.stream for lane, queue in queues.items()}  # type: ignore[attr-defined]
        self._main = self._streams[gpus[0]]
        self._device = self._main.device
        self._streams[CPU] = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._launches = {
            index: [native.launch(tokens, where) for native in programs] for index, programs in natives.items()
        }
        self._host_function = _host_function()
        self._graph: Any = None
        self._n_runs = 0
        self.refused = ""

    @property
    def how(self) -> str:
        if self._graph is not None:
            return "one CUDA graph"
        return f"issued call by call: {self.refused}" if self.refused else "one CUDA graph from the second step on"

    def run(self) -> None:
        """One step; returns when it is done. Raises ValueError with what a program of the CPU's had to say."""
        torch = self._torch
        with torch.cuda.device(self._device):
            if self._n_runs == 1 and not self.refused:
                self._capture()
            if self._graph is None:
                self._issue()
            else:
                with torch.cuda.stream(self._main):
                    self._graph.replay()
        self._main.synchronize()
        self._n_runs += 1
        for launch in (launch for launches in self._launches.values() for launch in launches):
            if launch.error:
                raise ValueError(launch.error)

    def _capture(self) -> None:
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        try:
            # Of this thread's calls only: others may allocate what has nothing to do with it.
            with torch.cuda.graph(graph, stream=self._main, capture_error_mode="thread_local"):
                self._issue()
        except RuntimeError as error:
            self.refused = str(error).partition("\n")[0]
            return
        self._graph = graph

    def _issue(self) -> None:
        """Queues all actions. Every stream begins behind the main one and is waited for by it."""
        torch = self._torch
        sides = [stream for stream in self._streams.values() if stream is not self._main]
        for side in sides:
            side.wait_stream(self._main)
        events = [torch.cuda.Event() for _ in range(self.plan.n_events)]
        for index, action in enumerate(self.plan.actions):
            stream = self._streams[action.lane]
            if action.what == WAIT:
                stream.wait_event(events[action.event])
            elif action.what == RECORD:
                events[action.event].record(stream)
            elif action.lane == CPU:
                for launch in self._launches[index]:
                    self._host_function(stream.cuda_stream, launch)
            else:
                with torch.cuda.stream(stream):
                    self._bodies[index]()
        for side in sides:
            self._main.wait_stream(side)


def _host_function() -> Any:
    """Queues a ``Launch`` on a stream. The driver's own call: the runtime that torch was built with has no fixed name.

    Raises:
        InvalidEnvironment: no driver, or one without the call.
    """
    try:
        call = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    except (OSError, AttributeError) as error:
        raise InvalidEnvironment(f"no CUDA driver with host functions: {error}") from None
    call.argtypes, call.restype = [ctypes.c_void_p] * 3, ctypes.c_int

    def queue(stream: int, launch: Any) -> None:
        code = call(stream, launch.function, launch.data)
        if code:
            raise RuntimeError(f"cuLaunchHostFunc: CUDA error {code}")

    return queue
