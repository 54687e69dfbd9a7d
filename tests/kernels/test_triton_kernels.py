"""Triton kernels, interpreted, against the float64 definition.

Triton decides when it is imported whether kernels are interpreted: the cases (``interpreted_kernels.py``) run in a
process of their own.
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

from kbench.kernels.triton.planes import PLANE_FORMATS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not os.environ.get("KBENCH_REQUIRE"),
    reason="triton is not installed",
)


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    script = Path(__file__).with_name("interpreted_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("quant", PLANE_FORMATS)
def test_products_are_within_bounds(quant: str, cases: list[dict[str, Any]]) -> None:
    mine = [case for case in cases if case["quant"] == quant]
    assert {case["tokens"] for case in mine} >= {1, 3, 17}, "lanes and tensor cores"
    assert not [case for case in mine if not case["ok"]]


def test_a_model_runs_on_an_alias(cases: list[dict[str, Any]]) -> None:
    """``triton`` rules on ``cuda:0=cpu``, interpreted: the tokens of one device."""
    (case,) = [case for case in cases if case["quant"] == "model"]
    assert case["ok"], case["reason"]
