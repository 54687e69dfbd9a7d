"""How the machine stands right now: what is stored with every block, and what of it makes numbers wander."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from kbench.core import kernelfile

from .gpu_state import gpu_states
from .host import variables


def conditions(root: Path = Path("/")) -> dict[str, Any]:
    """Load, pressure, clock governor, turbo, GPUs' clocks, and the variables that steer math libraries. What this
    machine does not tell is left out: virtual machines know of no governor."""
    cpu = root / "sys/devices/system/cpu"
    found: dict[str, Any] = {}
    load = kernelfile.read(root / "proc/loadavg").split()
    if load and re.fullmatch(r"\d{1,6}\.\d+", load[0]):
        found["load_1m"] = float(load[0])
    for kind in ("cpu", "memory"):
        some = re.search(r"^some avg10=(\d{1,3}\.\d+)", kernelfile.read(root / f"proc/pressure/{kind}"), re.MULTILINE)
        if some:
            found[f"{kind}_pressure_percent"] = float(some[1])
    governors = sorted({kernelfile.read(path) for path in cpu.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {""})
    if governors:
        found["governor"] = ",".join(governors)
    drivers = kernelfile.read(cpu / "cpu0/cpufreq/scaling_driver")
    if drivers:
        found["driver"] = drivers
    no_turbo, boost = kernelfile.read_int(cpu / "intel_pstate/no_turbo"), kernelfile.read_int(cpu / "cpufreq/boost")
    if no_turbo is not None:
        found["turbo"] = no_turbo == 0
    elif boost is not None:
        found["turbo"] = boost == 1
    if gpus := gpu_states():
        found["gpus"] = [gpu.as_dict() for gpu in gpus]
    if set_here := variables(os.environ):
        found["variables"] = set_here
    return found


def advice(found: dict[str, Any]) -> tuple[str, ...]:
    """What of ``conditions`` makes times wander, and what to do about it."""
    said = []
    # intel_pstate's and amd_pstate's powersave goes to full speed under load; others' stays at the lowest clock.
    if "powersave" in found.get("governor", "") and "pstate" not in found.get("driver", ""):
        said.append("the clock governor is powersave: cpupower frequency-set -g performance")
    if found.get("turbo"):
        said.append("turbo is on: clocks depend on heat and on what other cores do")
    return tuple(said)
