"""Whether a step's plan is right however fast its lanes are, and what of it runs beside what.

An action *precedes* another if it stands before it in a lane, or if an event behind it is waited for before the other.
A plan without two touches of the same bytes, one a write, that neither precedes the other has one outcome only: that
of its actions one after the other. So it is right if that is right: if each read finds the value that it is after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from kbench.core import Device

from .step_plan import COPY, RECORD, RUN, WAIT, Action, Place, StepPlan, Touch

# By lane, how many of its actions are known to be done.
Clock = Mapping[Device, int]


def clocks(actions: Sequence[Action]) -> list[Clock]:
    """Of each action what precedes it, and itself.

    Raises:
        ValueError: an event is waited for before it is recorded, or recorded twice. A stream does not wait for an event
            that nobody has recorded.
    """
    lanes: dict[Device, dict[Device, int]] = {}
    events: dict[int, Clock] = {}
    found: list[Clock] = []
    for action in actions:
        clock = lanes.setdefault(action.lane, {})
        if action.what == WAIT:
            if action.event not in events:
                raise ValueError(f"{action.lane} waits for event {action.event}, which is not recorded yet")
            for lane, count in events[action.event].items():
                clock[lane] = max(count, clock.get(lane, 0))
        clock[action.lane] = clock.get(action.lane, 0) + 1
        if action.what == RECORD:
            if action.event in events:
                raise ValueError(f"event {action.event} is recorded twice")
            events[action.event] = dict(clock)
        found.append(dict(clock))
    return found


def plan_errors(plan: StepPlan) -> list[str]:
    """What is wrong with ``plan``; nothing, if every order of its lanes' work gives the same, right values."""
    try:
        known = clocks(plan.actions)
    except ValueError as error:
        return [str(error)]
    return [*_races(plan.actions, known), *_wrong_reads(plan.actions)]


def _races(actions: Sequence[Action], known: Sequence[Clock]) -> list[str]:
    # By the device whose memory it is and the lane that touches it.
    seen: dict[Device, dict[Device, list[tuple[int, Touch]]]] = {}
    errors = []
    for index, action in enumerate(actions):
        for touch in action.touches:
            by_lane = seen.setdefault(touch.place.device, {})
            for lane, others in by_lane.items():
                done = known[index].get(lane, 0)
                for earlier, other in others if lane != action.lane else ():
                    if known[earlier][lane] > done and _conflict(touch, other):
                        errors.append(
                            f"{_verb(other)} of {other.value} by {lane} and {_verb(touch)} of {touch.value} by "
                            f"{action.lane} at the same bytes, in no order"
                        )
            by_lane.setdefault(action.lane, []).append((index, touch))
    return errors


def _conflict(a: Touch, b: Touch) -> bool:
    return (a.writes or b.writes) and a.place.meets(b.place)


def _verb(touch: Touch) -> str:
    return "write" if touch.writes else "read"


def _wrong_reads(actions: Sequence[Action]) -> list[str]:
    """Reads that do not find their value when the actions are done one after the other."""
    there: dict[str, Place] = {}
    errors = []
    for action in actions:
        for touch in action.touches:
            if touch.writes:
                there = {name: place for name, place in there.items() if not place.meets(touch.place)}
                there[touch.value] = touch.place
            elif there.get(touch.value) != touch.place:
                errors.append(f"{action.lane} reads {touch.value}, which is not there")
    return errors


def beside(plan: StepPlan) -> list[tuple[Action, Action]]:
    """Pairs of runs of different lanes neither of which precedes the other: what may happen at the same time."""
    known = clocks(plan.actions)
    runs = [(action, clock) for action, clock in zip(plan.actions, known, strict=True) if action.what == RUN]
    return [
        (a, b)
        for (a, before), (b, after) in combinations(runs, 2)
        if a.lane != b.lane and after.get(a.lane, 0) < before[a.lane] and before.get(b.lane, 0) < after[b.lane]
    ]


def n_crossings(plan: StepPlan) -> int:
    """Copies between lanes in a step."""
    return sum(action.what == COPY for action in plan.actions)
