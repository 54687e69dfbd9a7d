"""The pytest plugin, in runs of pytest of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pytest_benchmark")

# The example of docs/measuring.md.
EXAMPLE = """
import numpy as np

def test_dot(kbench_benchmark, kbench_cold):
    matrices = kbench_cold(lambda: np.ones((1024, 1024), np.float32), n_bytes=4 << 20)
    x = np.ones(1024, np.float32)
    y = kbench_benchmark(lambda matrix: matrix @ x, cold=matrices, n_bytes=4 << 20, flops=2 << 20, threads=1)
    assert (y == 1024).all()
"""
QUICK = """
from kbench.measure import FixedCount

def test_twice(kbench_benchmark, kbench_cold):
    made = []
    def make():
        made.append([len(made)])
        return made[-1]
    copies = kbench_cold(make, n_bytes=1 << 20)
    used = []
    kbench_benchmark(lambda copy: used.append(copy[0]), cold=copies, stopping=FixedCount(7))
    print("copies", len(made), "in turn", used[:len(made)] == list(range(len(made)))[:len(used)])
"""


def run(pytester: pytest.Pytester, code: str, *arguments: str) -> Any:
    pytester.makepyfile(code)
    return pytester.runpytest_subprocess("-p", "kbench.pytest_plugin", "-p", "no:cacheprovider", *arguments)


def test_the_example_of_the_documentation(pytester: pytest.Pytester) -> None:
    result = run(pytester, EXAMPLE, "--benchmark-only", "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    (made,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    said = made["extra_info"]["kbench"]
    assert said["cold"] is True and said["copies"] > 1
    assert said["bytes_per_s"] == pytest.approx((4 << 20) / said["median_seconds"])
    # One more round than samples: the one that makes pytest-benchmark's entry.
    assert made["stats"]["rounds"] == said["n_samples"] + 1
    assert said["interval_seconds"][0] <= said["median_seconds"] <= said["interval_seconds"][1]
    assert made["stats"]["median"] == pytest.approx(said["median_seconds"], rel=0.5)
    assert any(word in said["stop_reason"] for word in ("precise", "settled", "samples", "time"))
    result.stdout.fnmatch_lines(["*kbench*", "*test_dot: *µs*GB/s*GFLOP/s*cold*"])


def test_copies_take_turns_and_a_single_pass_makes_one(pytester: pytest.Pytester) -> None:
    result = run(pytester, QUICK, "--benchmark-only", "-s")
    result.stdout.fnmatch_lines(["*in turn True*", "*test_twice: *count: 7 samples*"])
    result = run(pytester, QUICK, "--benchmark-disable", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*copies 1 in turn True*"])
    result.stdout.no_fnmatch_line("*samples were asked for*")


def test_it_costs_nothing_where_no_test_asks_for_it(pytester: pytest.Pytester) -> None:
    code = "import sys\ndef test_light():\n    assert not {'torch', 'numpy', 'kbench.measure'} & set(sys.modules)\n"
    run(pytester, code).assert_outcomes(passed=1)


def test_what_the_function_raises_is_the_tests(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(kbench_benchmark):\n    kbench_benchmark(lambda: 1 / 0)\n", "--benchmark-only")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ZeroDivisionError*"])
