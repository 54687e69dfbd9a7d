"""GPUs as NVIDIA's management library lists them; no CUDA context is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``compute_capability`` is e.g. ``8.9``."""

    index: int
    name: str
    memory_total_bytes: int
    memory_free_bytes: int
    driver: str
    compute_capability: str = ""


def list_gpus() -> tuple[tuple[Gpu, ...], str]:
    """All GPUs, and the reason why there are none (empty when there are)."""
    try:
        import pynvml
    except ImportError:
        return (), "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"no NVIDIA driver: {error}"
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            capability = ".".join(str(part) for part in pynvml.nvmlDeviceGetCudaComputeCapability(handle))
            name = _text(pynvml.nvmlDeviceGetName(handle))
            gpus.append(Gpu(index, name, int(memory.total), int(memory.free), driver, capability))
        return tuple(gpus), "" if gpus else "the driver lists no GPU"
    except pynvml.NVMLError as error:
        return (), f"the driver does not answer: {error}"
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
