"""``kbench.suites.op_side`` with a busy-wait in the operation: ``python scripts/slowed_side.py 0.05`` is 5 % slower.

The wait is as long as that share of what the operation itself just took, so that the slowdown is exact.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from kbench.measure import host, serve
from kbench.suites.op_side import OpSide


def slowed(turn: Callable[[], object], share: float) -> Callable[[], object]:
    def run() -> object:
        begin = time.perf_counter_ns()
        kept = turn()
        now = time.perf_counter_ns()
        end = now + round((now - begin) * share)
        while time.perf_counter_ns() < end:
            pass
        return kept

    return run


class SlowedSide(OpSide):
    """The turns, each with its wait."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        said = super().open(request)
        if self._workload is not None:
            self._workload.turns = [slowed(turn, self._share) for turn in self._workload.turns]
        return said


if __name__ == "__main__":
    side = SlowedSide(float(sys.argv[1]))
    serve({"open": side.open, "take": side.take}, {"host_id": host().host_id, "slowed_by": float(sys.argv[1])})
