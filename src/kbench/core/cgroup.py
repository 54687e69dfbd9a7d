"""What a container may use: CPU quota and memory limit of this process's control group, versions 1 and 2.

A limit may sit on any ancestor, so every level up to the mount is read and the tightest one counts. Inside a cgroup
namespace the path of ``/proc/self/cgroup`` may not exist under the mount: then the mount itself is this group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .kernelfile import fields, read, read_int

# Version 1 writes "no limit" as the largest page-aligned number; nothing above 2^60 is a real limit.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """CPU quota in cores, memory limit in bytes (None: no limit), and seconds spent throttled so far."""

    version: int  # 0: no control groups
    cpu_quota: float | None = None
    memory_limit_bytes: int | None = None
    throttled_seconds: float = 0.0


def read_cgroup(root: Path) -> CgroupLimits:
    """Limits of the calling process as the files under ``root`` tell them."""
    mount = root / "sys/fs/cgroup"
    groups = _groups(read(root / "proc/self/cgroup"))
    quotas: list[float] = []
    memory: list[int] = []
    throttled = 0.0
    version = 0
    unified = next((m for m in (mount, mount / "unified") if (m / "cgroup.controllers").is_file()), None)
    if unified is not None:
        version = 2
        for folder in _levels(unified, groups.get("", "/")):
            quota, _, period = read(folder / "cpu.max").partition(" ")
            if quota.isdigit() and period.isdigit() and int(period):
                quotas.append(int(quota) / int(period))
            limit = read_int(folder / "memory.max")
            memory += [limit] if limit is not None else []
        own = next(_levels(unified, groups.get("", "/")))
        throttled = _number(fields(read(own / "cpu.stat").replace(" ", ":")).get("throttled_usec")) * 1e-6
    for controller in ("cpu", "memory"):
        base = next((m for m in _version_1_mounts(mount, controller) if m.is_dir()), None)
        if base is None or controller not in groups:
            continue
        # Where both versions are mounted, a controller belongs to one of them only.
        version = version if quotas or memory else 1
        for folder in _levels(base, groups[controller]):
            period_us, quota_us = read_int(folder / "cpu.cfs_period_us"), read_int(folder / "cpu.cfs_quota_us")
            if controller == "cpu" and quota_us is not None and quota_us > 0 and period_us:
                quotas.append(quota_us / period_us)
            limit = read_int(folder / "memory.limit_in_bytes") if controller == "memory" else None
            memory += [limit] if limit is not None else []
        if controller == "cpu":
            own = next(_levels(base, groups[controller]))
            throttled = _number(fields(read(own / "cpu.stat").replace(" ", ":")).get("throttled_time")) * 1e-9
    memory = [limit for limit in memory if 0 <= limit < _UNLIMITED]
    return CgroupLimits(version, min(quotas, default=None), min(memory, default=None), throttled)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _groups(text: str) -> dict[str, str]:
    """Controller (``""`` for version 2) -> path, from ``id:controllers:path`` lines."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            for controller in controllers.split(","):
                found.setdefault(controller, path)
    return found


def _version_1_mounts(mount: Path, controller: str) -> list[Path]:
    return [mount / controller, *sorted(mount.glob(f"*,{controller}")), *sorted(mount.glob(f"{controller},*"))]


def _levels(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and its ancestors up to the mount; only the mount when the path leads nowhere."""
    relative = PurePosixPath(path.lstrip("/"))
    if ".." in relative.parts or not (mount / relative).is_dir():
        relative = PurePosixPath()
    yield mount / relative
    for parent in relative.parents:
        if parent != relative:
            yield mount / parent
