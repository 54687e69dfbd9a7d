"""Whole models on Triton's kernels, interpreted: what the engine makes of them is right, to the last bit.

The cases (``interpreted_engine.py``) run in a process of their own, in which Triton interprets.
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
    script = Path(__file__).with_name("interpreted_engine.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("what", ["fusion", "drawing"])
def test_cases(what: str, cases: list[dict[str, Any]]) -> None:
    mine = [case for case in cases if case["what"].startswith(what)]
    assert mine and not [case for case in mine if not case["ok"]]


def test_every_case_is_asserted(cases: list[dict[str, Any]]) -> None:
    assert not [case for case in cases if not case["ok"]]
