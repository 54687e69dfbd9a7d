"""How much of a process lies in huge pages: what it gets differs from start to start, and its speed with it."""

from __future__ import annotations

import re
from pathlib import Path

from kbench.core import kernelfile


def huge_page_bytes(pid: int | None = None) -> int:
    """Anonymous memory of process ``pid``, by default this one, in huge pages; 0 where nothing tells it."""
    text = kernelfile.read(Path(f"/proc/{'self' if pid is None else pid}/smaps_rollup"))
    found = re.search(r"^AnonHugePages:\s+(\d{1,15}) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0
