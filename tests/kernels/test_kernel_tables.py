"""docs/kernels.md says what the kernels declare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kbench.kernels.cpu._native")

SCRIPT = Path(__file__).parents[2] / "scripts" / "kernel_tables.py"


def test_no_table_is_stale() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
