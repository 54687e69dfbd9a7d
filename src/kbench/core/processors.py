"""How many threads this process should use: the one rule behind every default thread count."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from . import kernelfile
from .cgroup import read_cgroup


def thread_limit(n_cores: int, cpu_quota: float | None) -> int:
    """Threads for ``n_cores`` physical cores under a control group's quota of ``cpu_quota`` cores (None: no quota).

    SMT siblings share the units that kernels use, so a core counts once. A quota of 1.5 cores is worth two threads:
    one could not use it up.
    """
    return max(1, n_cores if cpu_quota is None else min(n_cores, math.ceil(cpu_quota)))


def allowed_cpus() -> frozenset[int]:
    """The logical CPUs in this process's affinity mask."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def physical_cores(root: Path = Path("/"), affinity: Iterable[int] | None = None) -> int:
    """How many physical cores the logical CPUs ``affinity`` belong to; by default those of this process."""
    topology = root / "sys/devices/system/cpu"
    cpus = allowed_cpus() if affinity is None else affinity
    return len({kernelfile.read(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def default_threads(root: Path = Path("/"), affinity: Iterable[int] | None = None) -> int:
    """``thread_limit`` of this process: the physical cores in its affinity mask, and its control group's quota.

    Args:
        root: where ``proc`` and ``sys`` lie; another root is for tests.
        affinity: logical CPUs that may be used; by default this process's.
    """
    return thread_limit(physical_cores(root, affinity), read_cgroup(root).cpu_quota)
