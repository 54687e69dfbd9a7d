"""What a GPU's driver says of its state, from a made-up driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbench.measure import Guard, conditions, gpu_state


class NVMLError(Exception):
    pass


def driver(reasons: int, **changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{
        "NVMLError": NVMLError, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetCount": lambda: 1, "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetClockInfo": lambda handle, clock: 1000 * clock, "nvmlDeviceGetTemperature": lambda *_: 84,
        "nvmlDeviceGetPowerUsage": lambda handle: 350_500,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: reasons, **changes,
    })  # fmt: skip


def test_heat_and_power_are_told_and_idle_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "_library", lambda: driver(0x1 | 0x4 | 0x40))
    (state,) = gpu_state.gpu_states()
    assert (state.sm_mhz, state.memory_mhz, state.temperature, state.power_watts) == (1000, 2000, 84, 350.5)
    assert state.slowed_by == ("its power limit", "heat (hardware limit)")
    assert conditions()["gpus"][0]["slowed_by"] == ["its power limit", "heat (hardware limit)"]
    assert "GPU 0 was slowed by its power limit and heat (hardware limit)" in Guard().bad()
    monkeypatch.setattr(gpu_state, "_library", lambda: driver(0x1 | 0x2))
    assert gpu_state.gpu_states()[0].slowed_by == ()


def test_an_older_driver_and_a_card_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise NVMLError

    old = driver(0, nvmlDeviceGetCurrentClocksEventReasons=fails)
    old.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x8
    monkeypatch.setattr(gpu_state, "_library", lambda: old)
    assert gpu_state.gpu_states()[0].slowed_by == ("a hardware slowdown",)
    monkeypatch.setattr(gpu_state, "_library", lambda: driver(0, nvmlDeviceGetClockInfo=fails))
    assert gpu_state.gpu_states() == ()
    monkeypatch.setattr(gpu_state, "_library", lambda: None)
    assert gpu_state.gpu_states() == () and "gpus" not in conditions()
