"""What the kernel says of huge pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbench.measure import huge_page_bytes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("Rss:  4096 kB\nAnonHugePages:      6144 kB\nShmemPmdMapped: 8 kB\n", 6 << 20),
        ("Rss:  4096 kB\nAnonHugePages:         0 kB\n", 0),
        ("Rss:  4096 kB\n", 0),  # a kernel without them
        ("", 0),
    ],
)
def test_memory_in_huge_pages_is_read(tmp_path: Path, text: str, n_bytes: int) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/smaps_rollup").write_text(text)
    assert huge_page_bytes(tmp_path) == n_bytes


def test_where_nothing_tells_it_is_none(tmp_path: Path) -> None:
    assert huge_page_bytes(tmp_path) == 0


def test_it_is_what_the_mappings_add_up_to() -> None:
    smaps = Path("/proc/self/smaps")
    mappings = re.findall(r"^AnonHugePages:\s+(\d+) kB", smaps.read_text() if smaps.exists() else "", re.MULTILINE)
    assert huge_page_bytes() == sum(map(int, mappings)) << 10
