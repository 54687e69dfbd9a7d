"""The CPU as kernels see it: model, instruction sets, cores, caches, NUMA nodes. Read from ``/proc`` and ``/sys``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kbench.core import kernelfile

# Instruction sets that some kernel here or in a peer is chosen by, as the kernel spells them; x86, then Arm.
KERNEL_FLAGS = (
    "ssse3", "sse4_1", "sse4_2", "f16c", "fma", "avx", "avx2", "avx_vnni", "avx_vnni_int8", "avx512f", "avx512bw",
    "avx512cd", "avx512dq", "avx512vl", "avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "avx10", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "svebf16", "sme",
)  # fmt: skip

# Arm's cpuinfo has numbers where x86 has names: MIDR implementer and part, from Arm's and the vendors' manuals.
_ARM_IMPLEMENTERS = {
    0x41: "Arm", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x51: "Qualcomm", 0x61: "Apple",
    0xC0: "Ampere",
}  # fmt: skip
_ARM_PARTS = {
    (0x41, 0xD08): "Cortex-A72", (0x41, 0xD0B): "Cortex-A76", (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1", (0x41, 0xD49): "Neoverse-N2", (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3", (0x41, 0xD8E): "Neoverse-N3", (0x46, 0x001): "A64FX", (0xC0, 0xAC3): "Ampere-1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cache:
    """One kind of cache: bytes of one instance, how many instances there are, and the CPUs that share each."""

    level: int
    kind: str  # data, instruction, unified
    n_bytes: int
    instances: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        return f"L{self.level}{ {'data': 'd', 'instruction': 'i'}.get(self.kind, '') }"


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node: its CPUs, and its memory in bytes (0 where unknown)."""

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """Model and topology. ``cores`` holds the logical CPUs of each physical core."""

    vendor: str
    model: str
    flags: tuple[str, ...]
    n_sockets: int
    cores: tuple[tuple[int, ...], ...]
    caches: tuple[Cache, ...]
    numa: tuple[NumaNode, ...]
    virtual: bool

    @property
    def n_physical_cores(self) -> int:
        return len(self.cores)

    @property
    def n_logical_cpus(self) -> int:
        return sum(len(core) for core in self.cores)

    @property
    def smt(self) -> bool:
        """Whether any core shows more than one logical CPU."""
        return any(len(core) > 1 for core in self.cores)

    def cores_within(self, cpus: Sequence[int]) -> tuple[int, ...]:
        """The first allowed logical CPU of every physical core that ``cpus`` reach: where threads are pinned."""
        allowed = set(cpus)
        firsts = (next((cpu for cpu in core if cpu in allowed), None) for core in self.cores)
        return tuple(cpu for cpu in firsts if cpu is not None)

    def last_level_bytes(self, cpus: Sequence[int]) -> int:
        """Bytes of all last-level cache instances that ``cpus`` reach, together; 0 where unknown."""
        data = [cache for cache in self.caches if cache.kind != "instruction"]
        if not data:
            return 0
        last, allowed = max(data, key=lambda cache: cache.level), set(cpus)
        return last.n_bytes * max(1, sum(bool(allowed & set(instance)) for instance in last.instances))


def read_cpu(root: Path, fallback_cpus: Sequence[int]) -> Cpu:
    """The CPU of the machine whose ``/proc`` and ``/sys`` are under ``root``; unknown parts are empty or minimal.

    ``fallback_cpus``: logical CPUs when nothing lists them.
    """
    blocks = [kernelfile.fields(block) for block in re.split(r"\n\s*\n", kernelfile.read(root / "proc/cpuinfo"))]
    processors = {int(block["processor"]): block for block in blocks if block.get("processor", "").isdigit()}
    first = next(iter(processors.values()), {})
    system = root / "sys/devices/system"
    cpus = (
        kernelfile.cpu_list(kernelfile.read(system / "cpu/online")) or tuple(sorted(processors)) or tuple(fallback_cpus)
    )
    sockets, cores = _topology(system / "cpu", cpus, processors)
    vendor, model = _name(first)
    flags = set((first.get("flags") or first.get("Features") or "").split())
    return Cpu(
        vendor=vendor,
        model=model,
        flags=tuple(flag for flag in KERNEL_FLAGS if flag in flags),
        n_sockets=sockets,
        cores=cores,
        caches=_caches(system / "cpu", cpus),
        numa=_numa(system / "node"),
        virtual="hypervisor" in flags,
    )


def _name(cpuinfo: dict[str, str]) -> tuple[str, str]:
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(cpuinfo.get("vendor_id", ""))
    vendor = vendor or cpuinfo.get("vendor_id", "")
    model = re.sub(r"\s+", " ", cpuinfo.get("model name", ""))
    if cpuinfo.get("cpu family") and cpuinfo.get("model"):
        # Clouds mask the name ("AMD EPYC"); family and model still tell the generations apart.
        model += f" (family {cpuinfo['cpu family']} model {cpuinfo['model']})"
    try:
        implementer, part = int(cpuinfo["CPU implementer"], 16), int(cpuinfo["CPU part"], 16)
    except (KeyError, ValueError):
        return vendor, model.strip() or "unknown"
    vendor = _ARM_IMPLEMENTERS.get(implementer, f"implementer {implementer:#x}")
    return vendor, model.strip() or _ARM_PARTS.get((implementer, part), f"part {part:#x}")


def _topology(
    folder: Path, cpus: Sequence[int], processors: dict[int, dict[str, str]]
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Sockets, and the logical CPUs of each core: sysfs first, cpuinfo next, else every CPU is a core."""
    sockets: set[str] = set()
    cores: dict[tuple[str, str], list[int]] = {}
    for cpu in cpus:
        topology = folder / f"cpu{cpu}/topology"
        info = processors.get(cpu, {})
        socket = kernelfile.read(topology / "physical_package_id") or info.get("physical id", "0")
        siblings = kernelfile.read(topology / "core_cpus_list") or kernelfile.read(topology / "thread_siblings_list")
        core = (
            f"cpus {siblings}"
            if siblings
            else kernelfile.read(topology / "core_id") or info.get("core id", f"cpu {cpu}")
        )
        sockets.add(socket)
        cores.setdefault((socket, core), []).append(cpu)
    return max(1, len(sockets)), tuple(tuple(core) for core in cores.values())


def _caches(folder: Path, cpus: Sequence[int]) -> tuple[Cache, ...]:
    found: dict[tuple[int, str, int], set[tuple[int, ...]]] = {}
    for cpu in cpus:
        for index in sorted(folder.glob(f"cpu{cpu}/cache/index*")):
            level, size = kernelfile.read_int(index / "level"), kernelfile.kibibytes(kernelfile.read(index / "size"))
            if level is None or size is None:
                continue
            kind = kernelfile.read(index / "type").lower() or "unified"
            shared = kernelfile.cpu_list(kernelfile.read(index / "shared_cpu_list")) or (cpu,)
            found.setdefault((level, kind, size), set()).add(shared)
    return tuple(Cache(*key, tuple(sorted(instances))) for key, instances in sorted(found.items()))


def _numa(folder: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for path in folder.glob("node[0-9]*"):
        # "Node 0 MemTotal:       24683656 kB"
        match = re.search(r"MemTotal:\s*(\d{1,18}) kB", kernelfile.read(path / "meminfo"))
        memory = int(match[1]) << 10 if match else 0
        if path.name[4:].isdigit():
            nodes.append(NumaNode(int(path.name[4:]), kernelfile.cpu_list(kernelfile.read(path / "cpulist")), memory))
    return tuple(sorted(nodes, key=lambda node: node.index))
