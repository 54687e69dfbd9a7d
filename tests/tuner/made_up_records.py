"""Records of a machine that does not exist: every cell takes what its bytes and FLOPs take at round figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbench.core import OPS, Problem, work
from kbench.results import Record
from kbench.tuner.plan import Key

HOST_ID = "made-up-host"


def seconds_of(problem: Problem, threads: int) -> float:
    """14 GB/s and 120 GFLOP/s a thread, 3 us a call."""
    size = work(problem)
    return 3e-6 + max(
        (size.weight_bytes + size.cache_bytes) / (14e9 * threads),
        size.flops / (120e9 * threads),
        size.activation_bytes / (20e9 * threads),
    )


def record_of(problem: Problem, implementation: str, threads: int, **more: Any) -> Record:
    seconds = seconds_of(problem, threads)
    params = dict(zip(OPS[problem.op], problem.values, strict=True))
    key = f"{problem.key[:-1]},threads={threads})"
    samples = (0.95 * seconds, 0.98 * seconds, seconds, 1.02 * seconds, 1.1 * seconds)
    fields: dict[str, Any] = {
        "key": key, "op": problem.op, "implementation": implementation, "problem": params, "threads": threads,
        "samples": samples, "median": seconds, "host_id": HOST_ID, "commit": "v0.1.0", "created": "2026-01-01T00:00:00",
    }  # fmt: skip
    return Record(**{**fields, **more})


def records(keys: Iterable[Key]) -> list[Record]:
    return [record_of(*key) for key in keys]
