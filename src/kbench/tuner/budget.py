"""Memory budgets by device, and what is taken from them before the first weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from kbench.core import CPU, Device, OverBudget, format_bytes
from kbench.measure import Host

from .placement import PlacementProblem, least_overflow
from .profile import MARGIN_BYTES, RUNTIME_BYTES, GpuProfile, load_profile, profile_names
from .request import TuneRequest

GPU = Device("cuda", 0)

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


def budgets(request: TuneRequest, machine: Host | None) -> tuple[list[Budget], GpuProfile | None]:
    """The host's budget and, where there is a GPU to plan for, its own with the profile that prices it.

    Raises:
        UserError: no such profile.
    """
    dram = request.dram_bytes if request.dram_bytes is not None else free_bytes(machine)
    found = [Budget(CPU, dram, HOST_RUNTIME_BYTES, 0)]
    gpu = machine.gpus[0] if machine and machine.gpus else None
    vram = request.vram_bytes if request.vram_bytes is not None else gpu.memory_total_bytes if gpu else 0
    if not vram:
        return found, None
    name = request.gpu
    if gpu is not None and request.vram_bytes is None:
        words = gpu.name.lower().replace(" ", "")
        name = next((known for known in profile_names() if known in words), name)
    profile = load_profile(name)
    return [*found, Budget(GPU, vram, RUNTIME_BYTES, MARGIN_BYTES)], profile


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
