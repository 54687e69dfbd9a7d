"""A step over several devices as data: every order of the lanes' work gives the same values, or the check says so."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_tiny

from kbench.core import CPU, Assignment, Device, Phase, Placement
from kbench.engine import VALUES, Session, load_model
from kbench.engine.plan_check import beside, clocks, n_crossings, plan_errors
from kbench.engine.plan_threads import ThreadedPlan
from kbench.engine.planned import PlannedExecutable
from kbench.engine.queues import ThreadQueue
from kbench.engine.step_plan import COPY, RECORD, RUN, WAIT, Action, Place, StepPlan, Touch
from kbench.model import build_tree, describe_gguf, open_gguf, planned_crossings, synthesize

GPU, GPU1 = Device("cuda", 0), Device("cuda", 1)
ALIAS = {GPU: CPU, GPU1: CPU}
LANES = (CPU, GPU, GPU1)
PROMPT = [5, 17, 3, 99, 42, 42, 7, 61, 8, 30, 12]


# ------------------------------------------------------------------------- the check, against every order that there is


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    """Runs that read and write three cells of one memory, and waits between lanes; right, one after the other."""
    actions: list[Action] = []
    held: dict[int, str] = {}
    for number in range(draw(st.integers(2, 7))):
        lane = draw(st.sampled_from(LANES))
        cell = draw(st.integers(0, 2))
        kind = draw(st.sampled_from(("write", "read", "wait", "wait")))
        place = Place(CPU, 4 * cell, 4 * cell + 4)
        if kind == "wait":
            other = draw(st.sampled_from(LANES))
            actions += [Action(other, RECORD, event=number), Action(lane, WAIT, event=number)]
        elif kind == "write":
            held[cell] = f"v{number}"
            actions.append(Action(lane, RUN, (Touch(held[cell], place, True),)))
        elif cell in held:
            actions.append(Action(lane, RUN, (Touch(held[cell], place, False),)))
    return StepPlan(tuple(actions))


def orders(actions: tuple[Action, ...]) -> Iterator[list[int]]:
    """Every order that keeps the lanes' own and has events recorded before they are waited for."""
    lanes = [[i for i, action in enumerate(actions) if action.lane == lane] for lane in LANES]

    def go(done: list[int], at: tuple[int, ...]) -> Iterator[list[int]]:
        if len(done) == len(actions):
            yield list(done)
        for lane, mine in enumerate(lanes):
            if at[lane] == len(mine):
                continue
            index = mine[at[lane]]
            event = actions[index].event
            if actions[index].what == WAIT and not any(
                actions[i].what == RECORD and actions[i].event == event for i in done
            ):
                continue
            done.append(index)
            yield from go(done, tuple(n + (i == lane) for i, n in enumerate(at)))
            done.pop()

    return go([], (0, 0, 0))


@settings(max_examples=80, deadline=None)
@given(plans())
def test_a_plan_without_complaint_is_right_in_every_order(plan: StepPlan) -> None:
    actions = plan.actions
    touching = [i for i, action in enumerate(actions) if action.touches]
    conflicts = [
        (i, j)
        for i in touching
        for j in touching
        if i < j
        and actions[i].touches[0].place == actions[j].touches[0].place
        and (actions[i].touches[0].writes or actions[j].touches[0].writes)
    ]
    seen: set[tuple[int, int]] = set()
    wrong = False
    for order in orders(actions):
        at = {index: place for place, index in enumerate(order)}
        seen |= {(i, j) if at[i] < at[j] else (j, i) for i, j in conflicts}
        memory: dict[int, str] = {}
        for index in order:
            for touch in actions[index].touches:
                if touch.writes:
                    memory[touch.place.begin] = touch.value
                else:
                    wrong = wrong or memory.get(touch.place.begin) != touch.value
    racy = any((j, i) in seen and (i, j) in seen for i, j in conflicts)
    assert bool(plan_errors(plan)) == racy
    assert not (wrong and not racy)


def test_what_the_check_says() -> None:
    place, other = Place(CPU, 0, 64), Place(CPU, 32, 96)
    write, read = Action(GPU, COPY, (Touch("x", place, True),)), Action(CPU, RUN, (Touch("x", place, False),))
    assert plan_errors(StepPlan((write, read))) == [
        "write of x by cuda:0 and read of x by cpu at the same bytes, in no order"
    ]
    record, wait = Action(GPU, RECORD, event=0), Action(CPU, WAIT, event=0)
    assert plan_errors(StepPlan((write, record, wait, read))) == []
    assert plan_errors(StepPlan((write, wait, record, read))) == ["cpu waits for event 0, which is not recorded yet"]
    over = Action(CPU, RUN, (Touch("y", other, True),))
    assert plan_errors(StepPlan((write, record, wait, over, read))) == ["cpu reads x, which is not there"]


# ----------------------------------------------------------------------------------------------------- plans of models


def both(device: Device, op: str = "auto") -> Placement:
    return Placement(device, op, device, op)


def hybrid(module: str) -> Placement:
    return both(CPU if module.endswith((".experts", "embed_tokens")) else GPU)


def three(module: str) -> Placement:
    return both((CPU, GPU, GPU1)[sum(module.encode()) % 3])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "deepseek.gguf"
    synthesize(make_tiny("deepseek2", "Q8_0"), path, seed=4)
    return path


def assignment(path: Path, place: Any) -> Assignment:
    return {module.name: place(module.name) for module in build_tree(describe_gguf(open_gguf(path))).walk()}


def load(path: Path, place: Any, **options: Any) -> Session:
    options = {"kv": "f32", "context": 64, "chunk": 16, "threads": 1, "alias": ALIAS} | options
    return load_model(path, assignment(path, place), **options)


def planned(session: Session) -> PlannedExecutable:
    program = session._decode
    assert isinstance(program, PlannedExecutable)
    return program


def tokens(session: Session, n: int = 6) -> list[int]:
    logits, made = session.prefill(PROMPT), []
    for _ in range(n):
        made.append(int(logits.argmax()))
        logits = session.decode(made[-1])
    return made


@pytest.mark.parametrize("place", [hybrid, three], ids=["hybrid", "three devices"])
def test_a_step_by_plan_makes_the_tokens_of_one_device(path: Path, place: Any) -> None:
    session, plain = load(path, place), load(path, lambda m: both(CPU), alias=None)
    by_call = load(path, place, graph=False)
    assert not isinstance(by_call._decode, PlannedExecutable)
    assert plan_errors(planned(session).plan) == []
    assert tokens(session) == tokens(plain) == tokens(by_call)
    for one in (session, by_call):
        one.traffic.clear()
    np.testing.assert_array_equal(session.decode(3), plain.decode(3))
    by_call.decode(3)
    assert session.traffic.moved == by_call.traffic.moved and session.traffic.calls(VALUES) > 0
    assert session.traffic.calls(VALUES) == n_crossings(planned(session).plan)
    told = planned_crossings(session.descriptor, assignment(path, place), Phase.DECODE)
    moved = session.traffic.moved
    assert {(one.src, one.dst): (one.n_transfers, one.n_bytes) for one in told} == {
        (src, dst): (sums.calls, sums.n_bytes) for (_, src, dst), sums in moved.items()
    }


def test_every_wait_of_a_hybrid_step_is_needed(path: Path) -> None:
    plan = planned(load(path, hybrid)).plan
    waits = [i for i, action in enumerate(plan.actions) if action.what == WAIT]
    *inner, last = waits  # the last one is for whoever reads the logits, after the step
    assert inner and last == len(plan.actions) - 1
    for index in inner:
        assert plan_errors(StepPlan((*plan.actions[:index], *plan.actions[index + 1 :])))


def test_places_of_what_crosses_are_used_for_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a copy that is early writes over what is still read: the check sees it in a model's own plan."""
    monkeypatch.setattr("kbench.engine.planned.lasting", lambda items: set())
    assert any("in no order" in error for error in plan_errors(planned(load(path, three)).plan))


def experts_and_shared(program: PlannedExecutable) -> tuple[int, int]:
    """Where the plan has the routed and the shared experts of layer 1."""
    number = {item.number: item.call.module for item in program._items if item.what == "compute"}
    found = [
        next(i for i, a in enumerate(program.plan.actions) if a.what == RUN and any(number[n] == name for n in a.calls))
        for name in ("model.layers.1.mlp.experts", "model.layers.1.mlp.shared_experts.down_proj")
    ]
    return found[0], found[1]


def test_shared_experts_run_beside_routed_ones(path: Path) -> None:
    """By the plan nothing orders them; and when it is run, each is seen to run while the other does: both wait for the
    other to have begun."""
    session = load(path, hybrid)
    program = planned(session)
    routed, shared = experts_and_shared(program)
    actions = program.plan.actions
    pairs = beside(program.plan)
    assert (actions[routed], actions[shared]) in pairs or (actions[shared], actions[routed]) in pairs
    meeting = threading.Barrier(2, timeout=60)
    for index in (routed, shared):
        work = program.runner.bodies[index]
        program.runner.bodies[index] = lambda work=work: (meeting.wait(), work())
    assert tokens(session, 2) == tokens(load(path, lambda m: both(CPU), alias=None), 2)
    assert not meeting.broken


def test_a_lane_that_fails_ends_the_others(path: Path) -> None:
    session = load(path, hybrid)
    program = planned(session)
    program.runner.bodies[experts_and_shared(program)[1]] = lambda: 1 // 0
    session.prefill(PROMPT)
    with pytest.raises(ZeroDivisionError):
        session.decode(1)


def test_lanes_wait_for_events_only() -> None:
    """A lane that is far ahead stops at its wait."""
    seen: list[str] = []
    go = threading.Event()
    actions = (
        Action(GPU, RUN), Action(GPU, RECORD, event=0), Action(CPU, RUN), Action(CPU, WAIT, event=0), Action(CPU, RUN),
    )  # fmt: skip
    bodies = {0: lambda: (go.wait(60), seen.append("gpu")), 2: lambda: (seen.append("cpu"), go.set()),
              4: lambda: seen.append("cpu again")}  # fmt: skip
    ThreadedPlan(StepPlan(actions), bodies, {GPU: ThreadQueue("test")}, CPU).run()  # type: ignore[arg-type]
    assert seen == ["cpu", "gpu", "cpu again"]


def test_clocks_count_what_precedes() -> None:
    actions = (Action(GPU, RUN), Action(GPU, RECORD, event=0), Action(CPU, WAIT, event=0), Action(GPU, RUN))
    assert clocks(actions)[2] == {GPU: 2, CPU: 1} and clocks(actions)[3] == {GPU: 3}
    with pytest.raises(ValueError, match="twice"):
        clocks((*actions[:2], dataclasses.replace(actions[1])))


def test_a_session_says_how_it_decodes(path: Path) -> None:
    assert load(path, hybrid).how_decode_runs == "by a plan, a thread for each device"
    assert load(path, hybrid, graph=False).how_decode_runs == "call by call"
    several = load(path, hybrid, sequences=2)
    assert several.how_decode_runs == "call by call: its positions in several sequences are told by the host"
    assert "on the CPU alone" in load(path, lambda m: both(CPU), alias=None).how_decode_runs


# ------------------------------------------------------------------------------------- programs that C code starts


def test_a_program_is_started_by_an_address(path: Path) -> None:
    """As a CUDA stream starts it: a function and a pointer, without Python."""
    session, plain = load(path, hybrid), load(path, hybrid)
    program = planned(session)
    launches = [
        (index, step.launch(program._tokens, program._where))
        for index, steps in program._natives.items()
        if program.plan.actions[index].lane == CPU
        for step in steps
    ]
    assert launches
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    for index, launch in launches:
        program.runner.bodies[index] = lambda launch=launch: kind(launch.function)(launch.data)
    assert tokens(session) == tokens(plain)
    assert not any(launch.error for _, launch in launches)
    program._tokens[:] = -1
    kind(launches[0][1].function)(launches[0][1].data)
    assert "-1" in launches[0][1].error or "vocab" in launches[0][1].error
