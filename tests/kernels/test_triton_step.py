"""Triton kernels for attention, norms, rotations, gates and sampling, interpreted, against the float64 definition; and
models that run on them.

The cases (``interpreted_step.py``) run in a process of their own, in which Triton interprets.
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

from kbench.core import Problem
from kbench.kernels.triton import attention, step_device

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not os.environ.get("KBENCH_REQUIRE"),
    reason="triton is not installed",
)


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    script = Path(__file__).with_name("interpreted_step.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("op", step_device.OPS)
def test_outputs_are_within_bounds(op: str, cases: list[dict[str, Any]]) -> None:
    mine = [case for case in cases if case["what"].startswith(f"{op}(")]
    assert mine and not [case for case in mine if not case["ok"]]


@pytest.mark.parametrize(
    "what", ["draw", "greedy", "distribution", "rms_norm + residual", "model llama", "model deepseek2"]
)
def test_other_cases(what: str, cases: list[dict[str, Any]]) -> None:
    """The host's sampler draws the same; a sum and its norm in one; tokens of whole models are torch's."""
    mine = [case for case in cases if case["what"].startswith(what)]
    assert mine and not [case for case in mine if not case["ok"]]


def test_every_case_is_asserted(cases: list[dict[str, Any]]) -> None:
    assert not [case for case in cases if not case["ok"]]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("attention(heads=4,kv_heads=2,d=64,kv=q8_0,tokens=1,context=9)", "a cache of q8_0; there are f16, bf16"),
        ("attention(heads=4,kv_heads=2,d=512,kv=f16,tokens=1,context=9)", "too long"),
        ("mla_attention(heads=4,kv_lora=1024,rope=64,kv=f16,tokens=1,context=9)", "too long"),
        ("rms_norm(d=32768,rows=1,tokens=1)", "more than 16384"),
        ("top_logits(vocab=1000,top_k=500,tokens=1)", "more than 128 candidates"),
    ],
)
def test_what_is_not_taken(key: str, reason: str) -> None:
    found = step_device.takes(Problem.parse(key))
    assert not found.ok and reason in found.reason


def test_splits_fill_a_chip_and_no_more() -> None:
    # 132 multiprocessors, blocks of 32: a long cache of one sequence, of many, and a short one.
    assert attention.n_splits(1, 32768, 32, 132) == attention.MAX_SPLITS
    assert attention.n_splits(4, 32768, 32, 132) == 66
    assert attention.n_splits(600, 32768, 32, 132) == 1
    assert attention.n_splits(4, 100, 32, 132) == 4
