"""The int4 kernels, interpreted, against float64 products of the numbers that they were given.

Triton decides when it is imported whether kernels are interpreted: the cases (``interpreted_int4.py``) run in a process
of their own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not os.environ.get("KBENCH_REQUIRE"),
    reason="triton is not installed",
)


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    script = Path(__file__).with_name("interpreted_int4.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("kind", ["product", "protocol", "edges", "parts", "guards", "model"])
def test_interpreted(kind: str, cases: list[dict[str, Any]]) -> None:
    mine = [case for case in cases if case["kind"] == kind]
    assert mine
    assert not [case for case in mine if not case["ok"]]
