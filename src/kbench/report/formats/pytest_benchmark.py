"""The JSON of `pytest --benchmark-json`, which github-action-benchmark, Bencher and `pytest-benchmark compare` read.

Seconds of B, of a call or of a token. Raw samples where the row has them (``extra["b_samples"]``); else its one median
stands for all statistics, with one round, which says how much there is to them.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from typing import Any

from kbench.results import VerdictRow

from .sheet import Sheet, in_words, names_of


def pytest_benchmark(sheet: Sheet) -> str:
    """A file that `pytest-benchmark compare` takes."""
    benchmarks = []
    for row, name in zip(sheet.rows, names_of(sheet.rows), strict=True):
        samples = _samples(row)
        if samples:
            benchmarks.append(_benchmark(sheet, row, name, samples))
    data = {
        "machine_info": {
            "node": sheet.host_id,
            "processor": "",
            "machine": platform.machine(),
            "python_implementation": platform.python_implementation(),
            "python_version": platform.python_version(),
            "release": "",
            "system": platform.system(),
            "cpu": {},
        },
        "commit_info": {"id": sheet.commit or "unversioned", "dirty": sheet.commit.endswith("-dirty"), "branch": None},
        "benchmarks": benchmarks,
        "datetime": sheet.created,
        "version": f"kbench {sheet.version}",
    }
    return json.dumps(data, indent=1) + "\n"


def _samples(row: VerdictRow) -> list[float]:
    samples = row.extra.get("b_samples") or ([row.b_seconds] if row.b_seconds is not None else [])
    return [value / (row.tokens or 1) for value in samples if value > 0]


def _benchmark(sheet: Sheet, row: VerdictRow, name: str, samples: Sequence[float]) -> dict[str, Any]:
    ordered, n = sorted(samples), len(samples)
    q1, middle, q3 = statistics.quantiles(ordered, n=4, method="inclusive") if n > 1 else ordered * 3
    mean, deviation = statistics.fmean(samples), statistics.stdev(samples) if n > 1 else 0.0
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    inside = [value for value in ordered if low <= value <= high]
    beyond = n - len(inside)
    far = sum(abs(value - mean) > deviation for value in samples)
    return {
        "group": row.case.partition("(")[0],
        "name": name,
        "fullname": f"{sheet.verb}::{name}",
        "params": None,
        "param": None,
        "extra_info": {"verdict": row.outcome, "words": in_words(row), "ratio": row.ratio, "against": row.a},
        "options": {"timer": "perf_counter", "disable_gc": True, "warmup": True},
        "stats": {
            "min": ordered[0], "max": ordered[-1], "mean": mean, "stddev": deviation, "rounds": n, "median": middle,
            "iqr": q3 - q1, "q1": q1, "q3": q3, "iqr_outliers": beyond, "stddev_outliers": far,
            "outliers": f"{far};{beyond}", "ld15iqr": inside[0], "hd15iqr": inside[-1], "ops": 1 / mean,
            "total": sum(samples), "data": list(samples), "iterations": 1,
        },
    }  # fmt: skip
