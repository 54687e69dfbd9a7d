"""Runs a step's plan with a thread for each lane: what devices that are aliases of the CPU do.

Each lane runs through its actions by itself; nothing but the plan's events orders them. So a wait that is missing
shows, as it would on a GPU, and what can run at the same time does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from kbench.core import Device

from .queues import Queue
from .step_plan import RECORD, WAIT, Action, StepPlan

Body = Callable[[], None]


class ThreadedPlan:
    """A plan with what each run and copy does.

    Attributes:
        bodies: by the action's place in the plan; tests put others there.
    """

    how = "a thread for each device"

    def __init__(self, plan: StepPlan, bodies: Mapping[int, Body], queues: Mapping[Device, Queue], own: Device) -> None:
        """``queues`` of the lanes but ``own``, whose actions the caller's thread does."""
        self.plan, self.bodies, self._queues, self._own = plan, dict(bodies), queues, own
        self._lanes: dict[Device, list[tuple[int, Action]]] = {lane: [] for lane in plan.lanes}
        for index, action in enumerate(plan.actions):
            self._lanes[action.lane].append((index, action))

    def run(self) -> None:
        """One step; raises what the first body that failed raised."""
        events = [threading.Event() for _ in range(self.plan.n_events)]

        def go(lane: Device) -> None:
            try:
                for index, action in self._lanes[lane]:
                    if action.what == WAIT:
                        events[action.event].wait()
                    elif action.what == RECORD:
                        events[action.event].set()
                    else:
                        self.bodies[index]()
            except BaseException:
                for event in events:  # the others must end, if with wrong values: this is raised
                    event.set()
                raise

        others = [lane for lane in self._lanes if lane != self._own]
        for lane in others:
            self._queues[lane].submit(lambda lane=lane: go(lane))  # type: ignore[misc]
        failure: BaseException | None = None
        try:
            if self._own in self._lanes:
                go(self._own)
        except BaseException as error:
            failure = error
        for lane in others:
            try:
                self._queues[lane].drain()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure
