"""How GPUs stand right now: clocks, temperature, power, and why clocks are lower than they could be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

# NVML's reasons that make numbers another machine's. Idle, and clocks that somebody set, are none of them: idle is what
# a GPU is between two kernels.
_BAD_REASONS = {
    0x4: "its power limit",
    0x8: "a hardware slowdown",
    0x20: "heat (software limit)",
    0x40: "heat (hardware limit)",
    0x80: "the power supply's brake",
}


@dataclass(frozen=True, slots=True)
class GpuState:
    """Of one GPU; MHz, degrees Celsius, watts. ``slowed_by``: what holds its clocks down."""

    index: int
    sm_mhz: int
    memory_mhz: int
    temperature: int
    power_watts: float
    slowed_by: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "slowed_by": list(self.slowed_by)}


def gpu_states() -> tuple[GpuState, ...]:
    """One state for each GPU that the driver lists; none where there is no driver. Takes about a millisecond a GPU."""
    nvml = _library()
    if nvml is None:
        return ()
    found = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found.append(
                GpuState(
                    index,
                    int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                    int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
                    int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                    nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                    _slowed_by(nvml, handle),
                )
            )
    except nvml.NVMLError:  # a GPU that fell off the bus, a field that this one does not have
        return tuple(found)
    return tuple(found)


def _slowed_by(nvml: Any, handle: Any) -> tuple[str, ...]:
    # Drivers before 535 know the same bits by another name.
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    try:
        bits = int((ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))
    except nvml.NVMLError:
        bits = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return tuple(words for bit, words in _BAD_REASONS.items() if bits & bit)


@lru_cache(maxsize=1)
def _library() -> Any:
    """The management library, ready to be asked; None where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver: there is nothing to tell
        return None
    return pynvml
