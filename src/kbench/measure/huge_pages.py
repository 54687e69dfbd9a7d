"""How much of a process lies in huge pages: what it gets differs from start to start, and its speed with it."""

from __future__ import annotations

import re
from pathlib import Path

from kbench.core import kernelfile


def huge_page_bytes(root: Path = Path("/")) -> int:
    """Anonymous memory of this process in huge pages; 0 where nothing tells it. Other roots are for tests."""
    text = kernelfile.read(root / "proc/self/smaps_rollup")
    found = re.search(r"^AnonHugePages:\s+(\d{1,15}) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0
