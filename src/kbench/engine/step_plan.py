"""A step over several devices as data: what each lane does, in its order, and what it waits for.

A lane is a device's work in order: a stream, or the CPU's host functions. Lanes know nothing of each other but events:
a lane records one, another waits for it. So whether a step is right on any machine, however fast its parts are, can be
told from the plan alone (``plan_check``), and so can what runs beside what.

    cuda:0   norm router │copy x, ids, w│ ●1   shared experts      ○2 │copy y│ add norm ...
    cpu                                   ○1   routed experts  ●2                            ● record   ○ wait

A value goes to the CPU by a copy that the sender's lane makes, straight to where the CPU reads it; from the CPU by one
that the receiver's makes, straight from where the CPU wrote it. Those places are used for nothing else in a step, or a
copy that is early would write over what the CPU still reads: see ``lasting``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbench.core import Device, OpCall

from .schedule import COMPUTE, SEND, Item, source_of

RUN, COPY, RECORD, WAIT = "run", "copy", "record", "wait"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes ``begin`` to ``end`` of a device's arena."""

    device: Device
    begin: int
    end: int

    def meets(self, other: Place) -> bool:
        return self.device == other.device and self.begin < other.end and other.begin < self.end


@dataclass(frozen=True, slots=True)
class Touch:
    """A value read or written at a place."""

    value: str
    place: Place
    writes: bool


@dataclass(frozen=True, slots=True)
class Action:
    """What a lane does next. ``touches``, in order, of a run or a copy; ``calls``: their numbers in the lowered list;
    ``event`` of a record or a wait."""

    lane: Device
    what: str
    touches: tuple[Touch, ...] = ()
    calls: tuple[int, ...] = ()
    event: int = -1


@dataclass(frozen=True, slots=True)
class StepPlan:
    """``actions`` in the order in which one thread may issue them: events are recorded before they are waited for."""

    actions: tuple[Action, ...]

    @property
    def lanes(self) -> tuple[Device, ...]:
        return tuple(dict.fromkeys(action.lane for action in self.actions))

    def of(self, lane: Device) -> list[Action]:
        """A lane's actions, in its order."""
        return [action for action in self.actions if action.lane == lane]

    @property
    def n_events(self) -> int:
        return 1 + max((action.event for action in self.actions), default=-1)


def lasting(items: Sequence[Item]) -> set[str]:
    """Names of the values whose bytes nothing else may use, before or after, because another lane copies them: what
    arrives from a device, and what leaves the CPU."""
    moves = [item.call for item in items if item.what == SEND]
    return {
        call.inputs[0] if source_of(call).kind == "cpu" else call.outputs[0].name for call in moves
    }  # fmt: skip


def step_plan(items: Sequence[Item], places: Mapping[str, Place]) -> StepPlan:
    """The plan of ``items``, a schedule of one process; ``places``: where each value lies.

    Calls of a lane between two events are one run. An event is recorded behind the last of several copies in a row.
    """
    return _Builder(places).build(items)


def _without_idle_events(actions: Sequence[Action]) -> tuple[Action, ...]:
    """``actions`` without waits right before another one for the same lane, and records that nobody waits for."""
    recorded_by = {action.event: action.lane for action in actions if action.what == RECORD}
    next_of: dict[Device, Action] = {}
    kept: list[Action] = []
    for action in reversed(actions):
        after, next_of[action.lane] = next_of.get(action.lane), action
        # A lane's later event is behind its earlier ones.
        again = action.what == WAIT and after is not None and after.what == WAIT
        if not again or after is None or recorded_by[action.event] != recorded_by[after.event]:
            kept.append(action)
    waited = {action.event for action in kept if action.what == WAIT}
    return tuple(action for action in reversed(kept) if action.what != RECORD or action.event in waited)


class _Builder:
    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._actions: list[Action] = []
        # By lane, the calls that are not in a run yet.
        self._open: dict[Device, list[tuple[int, OpCall]]] = {}
        # Transfer -> how much the sender's lane has done when its value is there: its runs and copies, counted.
        self._sent: dict[int, int] = {}
        # (lane, how much it has done) -> event; (lane, other) -> how much the lane knows the other to have done.
        self._events: dict[tuple[Device, int], int] = {}
        self._known: dict[tuple[Device, Device], int] = {}

    def build(self, items: Sequence[Item]) -> StepPlan:
        for item in items:
            call = item.call
            if item.what == COMPUTE:
                self._open.setdefault(call.device, []).append((item.number, call))
                continue
            src, dst = source_of(call), call.device
            if item.what == SEND:
                self._close(src)
                if src.kind != "cpu":
                    self._copy(src, item)
                self._sent[item.number] = len(self._done(src))
            else:
                self._close(dst)
                self._await(dst, src, self._sent[item.number])
                if src.kind == "cpu":
                    self._copy(dst, item)
        for lane in list(self._open):
            self._close(lane)
        return StepPlan(_without_idle_events(self._actions))

    def _done(self, lane: Device) -> list[int]:
        """Where the lane's runs and copies are."""
        return [i for i, action in enumerate(self._actions) if action.lane == lane and action.what in (RUN, COPY)]

    def _touch(self, value: str, writes: bool) -> Touch:
        return Touch(value, self._places[value], writes)

    def _close(self, lane: Device) -> None:
        calls = self._open.pop(lane, [])
        if not calls:
            return
        touches: list[Touch] = []
        for _, call in calls:
            touches += [self._touch(name, False) for name in call.inputs if name in self._places]
            touches += [self._touch(value.name, True) for value in call.outputs]
        self._actions.append(Action(lane, RUN, tuple(touches), tuple(number for number, _ in calls)))

    def _copy(self, lane: Device, item: Item) -> None:
        touches = (self._touch(item.call.inputs[0], False), self._touch(item.call.outputs[0].name, True))
        self._actions.append(Action(lane, COPY, touches, (item.number,)))

    def _await(self, lane: Device, sender: Device, count: int) -> None:
        """``lane`` goes on when ``sender`` has done ``count`` runs and copies."""
        if self._known.get((lane, sender), 0) >= count:
            return
        done = self._done(sender)
        while count < len(done) and self._actions[done[count]].what == COPY:
            count += 1
        event = self._events.get((sender, count))
        if event is None:
            event = self._events[sender, count] = len(self._events)
            # Right behind what it is about, so that nothing later delays it.
            self._actions.insert(done[count - 1] + 1, Action(sender, RECORD, event=event))
        self._actions.append(Action(lane, WAIT, event=event))
        self._known[lane, sender] = count
