"""Which implementation runs what, with and without the native extension."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kbench.core import Device, Problem, Unsupported, UserError
from kbench.kernels import best, candidates, implementation, implementations, support

LINEAR = Problem.make("linear", quant="Q4_K", n=32, k=256, tokens=1)


def test_every_name_is_there_once_and_describes_itself() -> None:
    names = [item.name for item in implementations()]
    assert len(names) == len(set(names))
    assert {"reference", "torch", "cpu.scalar", "cpu.avx2", "cpu.avx512_vnni"} <= set(names)
    for item in implementations():
        assert item.summary
        verdict = item.runnable()
        assert verdict.ok or verdict.reason
        assert implementation(item.name) is item


def test_an_unknown_name_is_refused_with_a_hint() -> None:
    with pytest.raises(UserError, match=r"did you mean cpu\.avx2"):
        implementation("cpu.avx")


def test_best_is_the_first_that_can() -> None:
    names = [item.name for item, verdict in candidates(LINEAR) if verdict.ok]
    assert best(LINEAR) == names[0]
    assert names[-2:] == ["torch", "reference"]
    # No kernel multiplies blocks of this type: its rows are dequantised in cache.
    assert best(LINEAR.replace(quant="IQ1_M")) == names[0]


def test_a_device_that_nothing_runs_on() -> None:
    with pytest.raises(Unsupported, match="runs on cpu, not on cuda:0"):
        best(LINEAR, Device.parse("cuda"))
    blocks = Problem.make("attention", heads=1, kv_heads=1, d=8, kv="q8_0", tokens=1, context=1)
    assert "q8_0" in support(implementation("reference"), blocks).reason


def test_without_the_extension_the_rest_works() -> None:
    code = """
import sys
sys.modules["kbench.kernels.cpu"] = None  # what an import finds when there is no such package
from kbench.core import Problem
from kbench.kernels import best, implementation
print(best(Problem.make("add", d=1, tokens=1)))
print(implementation("cpu.avx2").runnable().reason)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0] == "torch"
    assert out[1].startswith("extension not built")


def test_the_front_door_is_light() -> None:
    code = """
import sys
from kbench.core import Problem
from kbench.kernels import best, candidates
candidates(Problem.make("add", d=1, tokens=1)), best(Problem.make("add", d=1, tokens=1))
print(*[m for m in ("torch", "gguf", "scipy") if m in sys.modules])
"""
    heavy = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert heavy == []
