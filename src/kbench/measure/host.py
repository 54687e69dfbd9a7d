"""The machine that numbers come from: its fingerprint, and what of it this process may use.

Two layers. The *identity* (CPU model, instruction sets, caches, cores, memory size, GPUs) is hashed into ``host_id``:
results with different ids are never compared. Everything else (limits, free memory, versions) is recorded as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from kbench import __version__
from kbench.core import CgroupLimits, kernelfile, read_cgroup, thread_limit

from .cpu import Cpu, read_cpu
from .gpu import Gpu, list_gpus

# Packages whose version changes numbers. Read from their metadata: importing torch takes seconds.
_PACKAGES = ("torch", "numpy", "scipy", "triton", "gguf", "nanobind")

# Variables that silently change what a thread pool or a math library does.
_VARIABLES = ("OMP_", "KMP_", "MKL_", "OPENBLAS_", "GOMP_", "ATEN_CPU_", "DNNL_", "ONEDNN_", "MALLOC_")
_VARIABLE_NAMES = ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES")

# Assumed when nothing tells the last-level cache: the L3 of a common server or desktop chiplet.
ASSUMED_LLC_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory in bytes. ``thp`` is the mode of transparent huge pages (always, madvise, never; "" unknown)."""

    total_bytes: int
    available_bytes: int
    thp: str = ""
    huge_page_bytes: int = 0
    free_huge_pages: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """A machine as this process finds it. ``gpu_reason`` says why ``gpus`` is empty."""

    cpu: Cpu
    memory: Memory
    affinity: tuple[int, ...]
    cgroup: CgroupLimits
    gpus: tuple[Gpu, ...]
    gpu_reason: str
    system: str
    versions: Mapping[str, str]
    variables: Mapping[str, str]

    @property
    def usable_cpus(self) -> int:
        """Threads that can really run at once: physical cores within the affinity, and no more than the quota."""
        return thread_limit(len(self.cpu.cores_within(self.affinity)), self.cgroup.cpu_quota)

    @property
    def pin_cpus(self) -> tuple[int, ...]:
        """Logical CPUs to pin ``usable_cpus`` threads to, one per physical core."""
        return self.cpu.cores_within(self.affinity)[: self.usable_cpus]

    @property
    def usable_memory_bytes(self) -> int:
        """Memory that this process may ever hold: all of it, or the control group's limit."""
        limit = self.cgroup.memory_limit_bytes
        return min(self.memory.total_bytes, limit) if limit is not None else self.memory.total_bytes

    @property
    def llc_bytes(self) -> int:
        """Last-level cache within reach of the affinity, all instances together: what cold rotation must exceed."""
        return self.cpu.last_level_bytes(self.affinity) or ASSUMED_LLC_BYTES

    @property
    def host_id(self) -> str:
        """Twelve hex digits of the identity's hash; the same after a reboot, in a container, with other limits."""
        identity = {
            "vendor": self.cpu.vendor,
            "model": self.cpu.model,
            "flags": self.cpu.flags,
            "cores": [self.cpu.n_sockets, self.cpu.n_physical_cores, self.cpu.n_logical_cpus],
            "caches": [[c.level, c.kind, c.n_bytes, len(c.instances)] for c in self.cpu.caches],
            # To whole GiB: kernels keep a few MiB more or less to themselves from version to version.
            "memory_gib": round(self.memory.total_bytes / 2**30),
            "gpus": [[gpu.name, round(gpu.memory_total_bytes / 2**30)] for gpu in self.gpus],
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and texts, with the derived properties."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        derived = {name: getattr(self, name) for name in ("usable_cpus", "usable_memory_bytes", "llc_bytes")}
        topology = {name: getattr(self.cpu, name) for name in ("n_physical_cores", "n_logical_cpus", "smt")}
        return {"host_id": self.host_id, **plain, "cpu": {**plain["cpu"], **topology}, **derived}


def read_host(root: Path = Path("/"), affinity: Sequence[int] | None = None) -> Host:
    """The machine whose ``/proc`` and ``/sys`` lie under ``root``. Never fails: what cannot be read is left empty.

    Args:
        root: another root is for tests and for images of other machines; GPUs and versions are always this one's.
        affinity: logical CPUs that may be used; by default this process's.
    """
    if affinity is None:
        affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()
    cpu = read_cpu(root, affinity or range(os.cpu_count() or 1))
    memory = _memory(root)
    if root == Path("/") and not (root / "proc/cpuinfo").exists():
        cpu, memory = _without_proc(cpu)
    gpus, gpu_reason = list_gpus()
    return Host(
        cpu=cpu,
        memory=memory,
        affinity=tuple(affinity) or tuple(sorted(c for core in cpu.cores for c in core)),
        cgroup=read_cgroup(root),
        gpus=gpus,
        gpu_reason=gpu_reason,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions=_versions(),
        variables=variables(os.environ),
    )


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Of ``environment`` what changes how fast libraries are."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_VARIABLES) or name in _VARIABLE_NAMES
    }


@lru_cache(maxsize=1)
def host() -> Host:
    """This machine, read once per process."""
    return read_host()


def _versions() -> dict[str, str]:
    versions = {"kbench": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _memory(root: Path) -> Memory:
    info = kernelfile.fields(kernelfile.read(root / "proc/meminfo"))
    modes = kernelfile.read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    huge_page_bytes = kernelfile.kibibytes(info.get("Hugepagesize", "")) or 0
    pages = root / f"sys/kernel/mm/hugepages/hugepages-{huge_page_bytes >> 10}kB/free_hugepages"
    return Memory(
        total_bytes=kernelfile.kibibytes(info.get("MemTotal", "")) or 0,
        available_bytes=kernelfile.kibibytes(info.get("MemAvailable") or info.get("MemFree", "")) or 0,
        thp=modes.partition("[")[2].partition("]")[0],
        huge_page_bytes=huge_page_bytes,
        free_huge_pages=kernelfile.read_int(pages) or kernelfile.kibibytes(info.get("HugePages_Free", "")) or 0,
    )


def _without_proc(cpu: Cpu) -> tuple[Cpu, Memory]:
    """CPU and memory where there is no ``/proc`` (macOS): fewer facts, from psutil and ``sysctl``."""
    import psutil

    logical = psutil.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    share = max(1, logical // physical)
    cores = tuple(tuple(range(i * share, (i + 1) * share)) for i in range(physical))
    model = platform.processor() or "unknown"
    if sys.platform == "darwin":
        try:
            answer = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=5, check=False
            )
            model = answer.stdout.strip() or model
        except (OSError, subprocess.TimeoutExpired):
            pass
    memory = psutil.virtual_memory()
    return Cpu(cpu.vendor, model, (), 1, cores, (), (), False), Memory(int(memory.total), int(memory.available))
