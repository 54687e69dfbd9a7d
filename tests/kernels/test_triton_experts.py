"""Routing and routed experts on a GPU, interpreted: see ``interpreted_experts.py``, which runs in a process of its
own."""

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
def found() -> dict[str, list[dict[str, Any]]]:
    script = Path(__file__).with_name("interpreted_experts.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    cases: dict[str, list[dict[str, Any]]] = json.loads(result.stdout)
    return cases


@pytest.mark.parametrize(
    ("part", "least"), [("experts", 25), ("split", 3), ("orders", 5), ("routers", 10), ("device", 5), ("model", 4)]
)
def test_interpreted(part: str, least: int, found: dict[str, list[dict[str, Any]]]) -> None:
    assert len(found[part]) >= least
    assert not [case for case in found[part] if not case["ok"]]
