"""Stored blocks become numbers on a device, in every type, as the gguf package reads them: interpreted, in a process of
its own (``interpreted_blocks.py``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbench.core import quant
from kbench.kernels import WEIGHT_TYPES
from kbench.kernels.triton.block_tensor import BLOCK_TYPES

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not os.environ.get("KBENCH_REQUIRE"),
    reason="triton is not installed",
)


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    script = Path(__file__).with_name("interpreted_blocks.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_every_quantised_type_is_read() -> None:
    assert set(BLOCK_TYPES) == {name for name in WEIGHT_TYPES if not quant(name).is_float}


@needs_triton
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_numbers_are_the_definitions(name: str, cases: list[dict[str, Any]]) -> None:
    mine = [case for case in cases if case["quant"] == name]
    assert mine
    assert not [case for case in mine if not case["ok"]]


@needs_triton
def test_operations_keep_blocks_on_the_device(cases: list[dict[str, Any]]) -> None:
    assert {case["what"] for case in cases} >= {"linear", "moe_experts", "embedding", "outside"}
