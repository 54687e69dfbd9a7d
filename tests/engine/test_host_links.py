"""What carries values between hosts: which of two networks, in which order, and what is told where that fails."""

from __future__ import annotations

import types
from typing import Any

import pytest
from tiny_models import make_tiny

from kbench.core import CPU, Device, InvalidEnvironment, Phase, Placement, UserError
from kbench.engine.devices import DeviceMap
from kbench.engine.links import GLOO, NCCL, End, Links, boundary, carrier, end_of
from kbench.engine.schedule import RECEIVE, SEND, schedule, source_of
from kbench.model import build_tree, lower

torch = pytest.importorskip("torch")
HERE, THERE = Device("cuda", 0), Device("cuda", 0, 1)


@pytest.mark.parametrize(
    ("src", "dst", "expected", "why"),
    [
        (End(5, True), End(6, True), NCCL, ""),
        (End(), End(6, True), GLOO, "on cuda:0 they lie in host memory"),
        (End(5, True), End(), GLOO, "on host1/cuda:0 they lie in host memory"),
        (End(5, True), End(5, True), GLOO, "the same GPU"),
        (End(5, True), End(6, False), GLOO, "host 1 has no NCCL: torch was built without it, or KBENCH_NCCL is 0"),
        (End(5, False), End(6, True), GLOO, "host 0 has no NCCL"),
        (End(), End(), GLOO, "on cuda:0 they lie in host memory"),
    ],
)
def test_nccl_between_two_gpus_and_gloo_elsewhere(src: End, dst: End, expected: str, why: str) -> None:
    found, told = carrier((HERE, THERE), src, dst)
    assert found == expected and why in told and bool(told) == bool(why)


@pytest.fixture()
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, as torch describes them, and NCCL."""
    uuids = ["8b2b0ac5-98f8-4c95-b0ec-5d3e6c2f4a10", "8b2b0ac5-98f8-4c95-b0ec-5d3e6c2f4a11"]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(uuid=uuids[index]), raising=False
    )
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)


@pytest.mark.usefixtures("gpus")
def test_what_a_host_tells_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [end_of(Device("cuda", n), DeviceMap(), {}) for n in (0, 1)]
    assert ends[0].nccl and ends[1].nccl and ends[0].gpu != ends[1].gpu
    assert all(0 < end.gpu < 1 << 63 for end in ends)  # a number of a message
    # The same GPU, whatever a host calls it; memory where an alias computes in memory.
    assert end_of(Device("cuda", 1), DeviceMap({Device("cuda", 1): Device("cuda", 0)}), {}) == ends[0]
    assert end_of(THERE, DeviceMap({HERE: CPU}, 1, 2), {}) == end_of(CPU, DeviceMap(), {}) == End()
    assert end_of(HERE, DeviceMap(), {"KBENCH_NCCL": "1"}) == ends[0]
    assert end_of(HERE, DeviceMap(), {"KBENCH_NCCL": "0"}) == End(ends[0].gpu, False)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert end_of(HERE, DeviceMap(), {}) == End(ends[0].gpu, False)
    with pytest.raises(UserError, match="'yes'") as caught:
        end_of(HERE, DeviceMap(), {"KBENCH_NCCL": "yes"})
    assert caught.value.where == "KBENCH_NCCL" and "gloo" in caught.value.accepted


def test_two_that_nccl_cannot_connect_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:77\nunhandled system error")

    monkeypatch.setattr(torch.distributed, "new_group", fail)
    with pytest.raises(InvalidEnvironment, match="nccl cannot connect cuda:0 with host1/cuda:0: NCCL error") as caught:
        Links([(HERE, THERE)], DeviceMap({}, 1, 2))
    assert caught.value.where == "host 1" and "KBENCH_NCCL=0" in caught.value.todo


def test_a_host_sends_in_the_order_in_which_the_other_receives() -> None:
    """Also what is made early and could leave before what is waited for first."""
    model = make_tiny("deepseek2")
    for seed in range(12):
        # Modules here and there, on CPUs and GPUs, without a pattern.
        places = [CPU, Device("cpu", 0, 1), HERE, THERE, Device("cuda", 1), Device("cuda", 0, 2)]
        assignment = {
            module.name: Placement(generate_device=places[hash((seed, i)) % len(places)])
            for i, module in enumerate(build_tree(model).walk())
        }
        calls = lower(model, assignment, Phase.DECODE, 1, 64, deliver=CPU, resolve=lambda *_: "reference")
        pairs = boundary(calls)
        assert pairs == sorted(set(pairs), key=str) and all(src.host != dst.host for src, dst in pairs)
        steps = [schedule(calls, DeviceMap({}, host, 3)) for host in range(3)]
        for src, dst in {(a.host, b.host) for a, b in pairs}:
            sent = [item.number for item in steps[src] if item.what == SEND and item.call.device.host == dst]
            received = [item.number for item in steps[dst] if item.what == RECEIVE and source_of(item.call).host == src]
            assert sent == received and sent
        assert len(pairs) > 4
        # None waits for ever: before it waits for another host, each has issued all that comes earlier.
        for items in steps:
            for index, item in enumerate(items):
                if item.what == RECEIVE and source_of(item.call).host != item.call.device.host:
                    assert all(item.number < later.number for later in items[index + 1 :])
