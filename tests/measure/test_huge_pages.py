"""What the kernel says of huge pages, where it gives some."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from kbench.measure import huge_page_bytes

_HUGE = 2 << 20
_MADV_HUGEPAGE = 14


def test_memory_in_huge_pages_is_counted() -> None:
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists() or "[never]" in modes.read_text():
        pytest.skip("this kernel gives no transparent huge pages")
    before = huge_page_bytes()
    memory = mmap.mmap(-1, 9 * _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start + -start % 4096), ctypes.c_size_t(8 * _HUGE), _MADV_HUGEPAGE)
    memory.write(b"x" * (8 * _HUGE))
    assert 0 <= huge_page_bytes() - before <= 9 * _HUGE
    assert huge_page_bytes() % _HUGE == 0


def test_a_process_that_is_none_has_none() -> None:
    assert huge_page_bytes(2**22) == 0
