"""A cell made ready to run: functions to time, each of which makes one or more calls.

A native implementation runs copies inside one program, as in a model, so that a step costs what it costs there. A
program longer than a few milliseconds is cut into several that take turns. Others run call by call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kbench.kernels import Example, Implementation, Prepared

from .layout import aligned, aligned_buffer, plan, write

# Steps of a program at least, unless that takes too long: starting it (microseconds) must not count.
PROGRAM_STEPS = 64
# A program, one sample, should not take longer than this.
PROGRAM_SECONDS = 0.02

# The first run of a step pays for page faults, a second may be disturbed: the least of a few tells its length.
_TRIES = 4

Chosen = Sequence[tuple[Example, Prepared]]


@dataclass(slots=True)
class Workload:
    """``turns`` are functions to call in rotation; each makes ``steps`` calls."""

    turns: list[Callable[[], object]]
    steps: int
    _next: int = field(default=0, init=False)

    def run(self) -> None:
        """The next turn."""
        self.turns[self._next]()
        self._next = (self._next + 1) % len(self.turns)


def call_by_call(item: Implementation, chosen: Chosen, threads: int) -> Workload:
    """Each turn is one call through the implementation's own ``run``."""

    def turn(case: Example, prepared: Prepared) -> Callable[[], object]:
        return lambda: item.run(case.call, prepared, case.inputs, case.state, threads)

    return Workload([turn(case, prepared) for case, prepared in chosen], 1)


class _Arena:
    """Slots for the calls of a cell, filled with their inputs: two sets, and expert ids of each variant."""

    def __init__(self, chosen: Chosen) -> None:
        case = chosen[0][0]
        # Routed experts' variants differ in their ids, the second input.
        self._varied = 1 if case.call.op == "moe_experts" else None
        shared = [
            array
            for index, (name, array) in enumerate(zip(case.call.inputs, case.inputs, strict=True))
            if name != "$tokens" and index != self._varied
        ]
        self._names = [
            name for index, name in enumerate(case.call.inputs) if name != "$tokens" and index != self._varied
        ]
        self._sets, end = plan(case.call, shared, case.call.problem.integer("tokens"))
        self._ids: list[int] = []
        if self._varied is not None:
            for one, _ in chosen:
                self._ids.append(end)
                end += aligned(one.inputs[self._varied].nbytes)
        self.buffer = aligned_buffer(end)
        for slots in self._sets:
            for offset, array in zip(slots.inputs, shared, strict=True):
                write(self.buffer, offset, array)
        for offset, (one, _) in zip(self._ids, chosen, strict=False):
            write(self.buffer, offset, one.inputs[1])

    def offsets(self, case: Example, variant: int, step: int) -> Mapping[str, int]:
        """Byte offsets by the names of the call's values."""
        slots = self._sets[step % 2]
        places = dict(zip(self._names, slots.inputs, strict=True))
        if self._varied is not None:
            places[case.call.inputs[self._varied]] = self._ids[variant]
        places.update(zip((value.name for value in case.call.outputs), slots.outputs, strict=True))
        return places


def in_programs(item: Any, pool: Any, chosen: Chosen, call_seconds: float) -> Workload:
    """Native programs over ``chosen``; ``call_seconds`` is about what one call takes.

    ``item.emit(program, call, prepared, offsets, caches)`` appends the steps of a call.
    """
    from kbench.kernels import Program

    case = chosen[0][0]
    longest = max(1, int(PROGRAM_SECONDS / max(call_seconds, 1e-9)))
    # Round and round the variants, whole rounds only: their order stays the coldest one.
    rounds = max(1, min(PROGRAM_STEPS, longest) // len(chosen))
    order = [i for _ in range(rounds) for i in range(len(chosen))]
    pieces = -(-len(order) // longest)
    per_program = len(order) // pieces  # equal lengths; a rest shorter than a program is left out
    arena = _Arena(chosen)
    tokens, position = np.ascontiguousarray(case.state.tokens, np.int32), case.state.position

    def turn(steps: Sequence[int]) -> Callable[[], object]:
        program = Program(pool, arena.buffer, len(tokens))
        for step, variant in enumerate(steps):
            one, prepared = chosen[variant]
            item.emit(program, one.call, prepared, arena.offsets(one, variant, step), one.state.caches)

        def run() -> object:
            return arena, program.run(tokens, position)  # the arena lives as long as the programs that point into it

        return run

    starts = range(0, len(order) - per_program + 1, per_program)
    return Workload([turn(order[start : start + per_program]) for start in starts], per_program)


def ready(item: Any, chosen: Chosen, threads: int) -> Workload:
    """``chosen`` made ready to run on ``threads`` threads: in programs where ``item`` can, else call by call."""
    if not hasattr(item, "emit"):
        return call_by_call(item, chosen, threads)
    from kbench.kernels import pool

    alone = in_programs(item, pool(threads), chosen[:1], 1.0)  # one step: how long is it about?
    seconds: list[float] = []
    while len(seconds) < _TRIES and sum(seconds) < PROGRAM_SECONDS:
        begin = time.perf_counter()
        alone.run()
        seconds.append(time.perf_counter() - begin)
    return in_programs(item, pool(threads), chosen, min(seconds))
