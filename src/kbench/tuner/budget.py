"""Memory budgets by device, and what is taken from them before the first weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from kbench.core import CPU, Device, OverBudget, UserError, format_bytes, parse_size
from kbench.measure import Host

from .placement import PlacementProblem, least_overflow
from .profile import MARGIN_BYTES, RUNTIME_BYTES, GpuProfile, load_profile, profile_names
from .request import TuneRequest

# Interpreter, torch, tokenizer: what the engine leaves to the rest of its process.
HOST_RUNTIME_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Budget:
    """One device's memory: ``total_bytes`` may be used, ``runtime_bytes`` is gone at once, ``margin_bytes`` stays."""

    device: Device
    total_bytes: int
    runtime_bytes: int
    margin_bytes: int

    def capacity(self, workspace_bytes: int) -> int:
        """What is left for weights and cache; negative when nothing is."""
        return self.total_bytes - self.runtime_bytes - self.margin_bytes - workspace_bytes


def parse_vram(text: str, where: str = "--vram") -> int | dict[Device, int]:
    """``21G``, or ``cuda:0=21G,cuda:1=10G``: bytes of one GPU, or of each.

    Raises:
        UserError: a size that is none, a device that is no GPU or comes twice.
    """
    if "=" not in text:
        return parse_size(text, where)
    found: dict[Device, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        device = Device.parse(name.strip())
        if device.kind == CPU.kind or device in found:
            raise UserError(f"{part.strip()!r}", where=where, accepted="each GPU once, like cuda:0=21G,cuda:1=10G")
        found[device] = parse_size(size, where)
    return found


def budgets(request: TuneRequest, machine: Host | None) -> tuple[list[Budget], dict[Device, GpuProfile]]:
    """The host's budget and, for each GPU to plan for, its own with the profile that prices it.

    Raises:
        UserError: no such profile.
    """
    dram = request.dram_bytes if request.dram_bytes is not None else free_bytes(machine)
    found = [Budget(CPU, dram, HOST_RUNTIME_BYTES, 0)]
    here = {Device("cuda", gpu.index): gpu for gpu in (machine.gpus if machine else ())}
    if request.vram_bytes is None:
        wanted = {device: gpu.memory_total_bytes for device, gpu in here.items()}
    elif isinstance(request.vram_bytes, int):
        wanted = {Device("cuda", 0): request.vram_bytes}
    else:
        wanted = dict(request.vram_bytes)
    names = [name.strip() for name in request.gpu.split(",")]
    profiles = {}
    for position, (device, vram) in enumerate(sorted(wanted.items(), key=lambda item: str(item[0]))):
        if not vram:
            continue
        name = names[min(position, len(names) - 1)]
        if request.vram_bytes is None:
            name = profile_of(here[device].name) or name
        profiles[device] = load_profile(name)
        found.append(Budget(device, vram, RUNTIME_BYTES, MARGIN_BYTES))
    return found, profiles


def profile_of(gpu_name: str) -> str:
    """The profile of a GPU as its driver calls it; an empty string where there is none."""
    words = gpu_name.lower().replace(" ", "")
    return max((known for known in profile_names() if known in words), key=len, default="")


def free_bytes(machine: Host | None) -> int:
    """Memory that can be taken now, within the control group's limit."""
    free = int(psutil.virtual_memory().available)
    return min(free, machine.usable_memory_bytes) if machine else free


def over_budget(
    problem: PlacementProblem, available: Sequence[Budget], workspace_bytes: int, hint: str = ""
) -> OverBudget:
    """What is short, by how much, and the host budget that would do."""
    dram, *gpus = available
    overflow = least_overflow(problem)
    needed, fixed = dram.total_bytes + overflow, workspace_bytes + dram.runtime_bytes
    beside = "".join(f" beside {format_bytes(gpu.total_bytes)} of VRAM" for gpu in gpus)
    return OverBudget(
        f"DRAM is {format_bytes(overflow)} short: weights and cache take {format_bytes(needed - fixed)} of it{beside}, "
        f"workspace and runtime {format_bytes(fixed)}; the budget is {format_bytes(dram.total_bytes)}",
        where="budget",
        accepted=f"--dram {-(-needed // 2**30)}G or more"
        if needed > 8 << 30
        else f"--dram {-(-needed // 2**20)}M or more",
        todo=hint or "raise a budget, or choose a smaller quantization",
    )
