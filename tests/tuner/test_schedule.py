"""Fork, join and crossings on schedules that can be worked out by hand."""

from __future__ import annotations

import pytest

from kbench.core import CPU, Device
from kbench.tuner.schedule import Step, makespan

GPU = Device("cuda", 0)


def crossing(value: str, src: Device, dst: Device) -> float:
    return 1.0


def test_one_device_adds_up() -> None:
    steps = [Step(CPU, 2.0, ("$tokens",), ("a",)), Step(CPU, 3.0, ("a",), ("b",)), Step(CPU, 4.0, ("a", "b"), ("c",))]
    assert makespan(steps, crossing) == 9.0


def test_two_sides_overlap_and_join() -> None:
    # x on the GPU; routed on the CPU (1 over, 10 of work, 1 back) beside shared on the GPU (4), then the sum (1).
    steps = [
        Step(GPU, 2.0, ("$tokens",), ("x",)),
        Step(CPU, 10.0, ("x",), ("routed",)),
        Step(GPU, 4.0, ("x",), ("shared",)),
        Step(GPU, 1.0, ("routed", "shared"), ("y",)),
    ]
    assert makespan(steps, crossing) == 2 + 1 + max(10 + 1, 4) + 1
    slow_gpu = [*steps[:2], Step(GPU, 40.0, ("x",), ("shared",)), steps[3]]
    assert makespan(slow_gpu, crossing) == 2 + 40 + 1


def test_a_value_crosses_once_and_a_link_carries_one_at_a_time() -> None:
    steps = [
        Step(CPU, 1.0, (), ("a", "b")),
        Step(GPU, 1.0, ("a",), ("c",)),
        Step(GPU, 1.0, ("a", "b"), ("d",)),
    ]
    # a arrives at 2, b behind it at 3; c ends at 3, d at 4.
    assert makespan(steps, crossing) == 4.0


def test_explicit_transfers_take_the_link() -> None:
    steps = [
        Step(CPU, 1.0, (), ("a",)),
        Step(GPU, 0.5, ("a",), ("a@cuda:0",), (CPU, GPU)),
        Step(GPU, 1.0, ("a@cuda:0",), ("b",)),
    ]
    assert makespan(steps, crossing) == 2.5


def test_what_is_present_costs_nothing_where_it_is() -> None:
    steps = [Step(GPU, 1.0, ("h",), ("y",))]
    assert makespan(steps, crossing, {"h": GPU}) == 1.0
    assert makespan(steps, crossing, {"h": CPU}) == 2.0


def test_an_unknown_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        makespan([Step(CPU, 1.0, ("nothing",), ("y",))], crossing)
