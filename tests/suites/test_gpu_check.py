"""``scripts/gpu_check.py`` without a GPU: interpreted, resumed, and what becomes of steps that crash or hang."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kbench.results import Store

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not os.environ.get("KBENCH_REQUIRE"),
    reason="triton is not installed",
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_without_a_gpu_it_says_what_is_missing() -> None:
    result = run(TRITON_INTERPRET="0")
    if result.returncode == 4:
        assert "CUDA" in result.stderr and "Traceback" not in result.stderr
    else:
        pytest.fail(f"exit {result.returncode}: a GPU is here, or {result.stderr[-200:]}")


@needs_triton
def test_interpreted_steps_are_right_and_not_repeated(tmp_path: Path) -> None:
    arguments = (
        "--small",
        "--results",
        str(tmp_path),
        "--only",
        "correct embedding",
        "--only",
        "transfers",
        "--only",
        "compare triton linear",
    )
    first = run(*arguments, TRITON_INTERPRET="1")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "interpreted" in first.stdout and "nothing of speed" in first.stdout
    assert "correct embedding | triton | 2 cases within their bounds" in first.stdout
    records = Store(tmp_path).find()
    assert {record.device for record in records} == {"cpu"} and all(record.extra["interpreted"] for record in records)
    again = run(*arguments, TRITON_INTERPRET="1")
    assert again.returncode == 0 and again.stdout == first.stdout
    assert len(Store(tmp_path).find()) == len(records)


FAKE = """
import os, sys, time
print('{"case": "early", "result": "ok", "value": 2.0, "unit": "times", "at_least": 3.0}', flush=True)
if "hang" in sys.argv[1]:
    time.sleep(60)
if "crash" in sys.argv[1]:
    os.kill(os.getpid(), 11)
"""


def test_a_crash_and_a_hang_are_rows(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_LEAST_SECONDS", 0.0)
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    store = Store(tmp_path / "results")

    def check() -> Any:
        return script.Check(store, True, time.monotonic() + 100, fake)

    first = check()
    for step in (script.Step("crash", 50), script.Step("hang", 5), script.Step("fine", 50)):
        first.run(step)
    found = {(row["step"], row["case"]): row["result"] for row in first.rows}
    assert found["crash", "the step"] == "crashed" and found["hang", "the step"] == "timeout"
    assert found["crash", "early"] == found["hang", "early"] == "ok", "what was said before is kept"
    assert first.finished == {"fine"}
    second = check()
    second.recall()
    assert second.finished == {"fine"} and [row["case"] for row in second.rows] == ["early"]
    assert all(script.missed(row) for row in second.rows)
    assert "MISSED" in script.table(second.rows)


def test_shares_of_the_bandwidth(script: ModuleType) -> None:
    key = "linear(quant=Q4_K,n=16384,k=5120,tokens=1)"
    rows = [
        {"step": "machine", "case": "bandwidth", "result": "ok", "value": 1000.0, "unit": "GB/s"},
        {"step": "c", "case": f"triton, torch {key}", "result": "ok", "value": 3.0, "unit": "times as fast",
         "seconds": 1e-6, "bytes": 0.9e6},
    ]  # fmt: skip
    (share,) = script.shares(rows)
    assert share["value"] == pytest.approx(0.9) and not script.missed(share)
    rows[1]["seconds"] = 2e-6
    assert script.missed(next(iter(script.shares(rows))))
