"""Small text files of the Linux kernel under ``/proc`` and ``/sys``, any of which may be missing or unreadable."""

from __future__ import annotations

import re
from pathlib import Path

# No file that is read here is larger; cpuinfo of 1024 CPUs is 2 MiB.
_MAX_BYTES = 8 << 20

# A CPU list names CPUs, not ranges of the integers: the kernel's own limit is 8192.
_MAX_CPU = 8192


def read(path: Path) -> str:
    """The text without surrounding blanks, or ``""`` when it cannot be had."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_int(path: Path) -> int | None:
    """The file's one integer, or None."""
    text = read(path)
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None


def cpu_list(text: str) -> tuple[int, ...]:
    """``0-3,8`` as (0, 1, 2, 3, 8); parts that are no ranges are skipped."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match:
            cpus.update(range(int(match[1]), min(int(match[2] or match[1]), _MAX_CPU) + 1))
    return tuple(sorted(cpus))


def kibibytes(text: str) -> int | None:
    """Bytes of ``32K``, ``8M`` (cache sizes) or ``24683656 kB`` (meminfo)."""
    match = re.fullmatch(r"(\d{1,18})\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()] if match else None


def fields(text: str) -> dict[str, str]:
    """``name : value`` lines as a mapping; the first of a repeated name wins."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found
