"""How much memory this process may still take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

from kbench.core import Device


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated before the machine swaps or a control group kills us.

    Page cache counts as available: the kernel gives it up. ``root`` is where ``/proc`` and ``/sys`` are looked for.
    """
    rooms = [int(psutil.virtual_memory().available)]
    for folder in _groups(root):
        # Version 2, then version 1; a limit may sit on any ancestor.
        for limit_file, usage_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, usage = _number(folder / limit_file), _number(folder / usage_file)
            if limit is not None and usage is not None:
                rooms.append(max(0, limit - usage + _reclaimable(folder / "memory.stat")))
    return min(rooms)


def device_bytes(device: Device) -> int:
    """Bytes that are free on a CUDA device."""
    import torch

    return int(torch.cuda.mem_get_info(device.index)[0])


def _groups(root: Path) -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        base = mount / "memory" if controllers else mount
        relative = PurePosixPath(path.lstrip("/"))
        # In a cgroup namespace the path may not exist below the mount; then the mount is our own group.
        if ".." in relative.parts or not (base / relative).is_dir():
            relative = PurePosixPath()
        yield base / relative
        yield from (base / parent for parent in relative.parents if parent != relative)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    # Version 1 spells "no limit" as a number beyond every machine.
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _reclaimable(path: Path) -> int:
    """Pages of files, read once or often: charged to the group, but given up under pressure. (A model's file that was
    read twice is "active", which is no reason to refuse loading it.)"""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    stats = dict(line.split(maxsplit=1) for line in lines if " " in line)
    counted = (stats.get(f"total_{kind}") or stats.get(kind) or "0" for kind in ("inactive_file", "active_file"))
    return sum(int(text) for text in counted if text.isdigit())
