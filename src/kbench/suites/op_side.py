"""A side that times operations: one process, one implementation at a time, as ``python -m kbench.suites.op_side``.

    open    makes seeded weights and inputs, packs them in as many copies as a cold cache needs, checks the result
    take    seconds of a call: one turn that is not timed wakes the threads, then as many as fill ``seconds``

The same problem gives the same bytes in every process: ``open`` answers with their checksum.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbench.core import Problem
from kbench.kernels import comparable, kernel_version, op_spec, support
from kbench.measure import host, huge_page_bytes, is_cold, mean_seconds, serve, system_clock
from kbench.results import current_commit

from .cell import Cell
from .copies import first_example, pack_copies, touched_bytes, variants
from .verify import verify
from .workload import Workload, ready

_WARM_TURNS = 2
# Of what is cold otherwise. Of twice the cache a fifth may still be found on the second way round, more or less as
# physical addresses fall: sides of one program differed by as much, for as long as their processes lived.
_COLD_TIMES = 2
# A turn of so many samples' length is one by itself.
_LONG = 10


class OpSide:
    """The turns."""

    def __init__(self) -> None:
        self._workload: Workload | None = None

    def open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._workload = None  # its weights go before new ones come
        problem, threads = Problem.parse(request["problem"]), int(request["threads"])
        item, block = comparable(request["implementation"]), dict(request.get("block", {}))
        judged_support = support(item, problem)
        if not judged_support.ok:
            return {"failed": "Unsupported", "found": judged_support.reason}
        packed = pack_copies(item, problem, block, _COLD_TIMES)
        case = first_example(Cell(problem, item.name, threads, block), problem, packed)
        checksum = 0
        for array in (*(weight.whole for weight in case.weights), *case.inputs, case.state.tokens):
            checksum = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data, checksum)
        judged = verify(item, case, packed.copies[0], threads)
        if not judged.ok:
            return {"failed": "wrong", "found": judged.reason}
        chosen = variants(case, packed)
        self._workload = ready(item, chosen, threads)
        clock = system_clock()
        for _ in range(_WARM_TURNS):
            seconds = mean_seconds(self._workload.run, 1, clock)
        return {
            "call_seconds": seconds / self._workload.steps,
            "checksum": checksum,
            "error_share": min(judged.worst, 1e9),
            "cold": is_cold(1, touched_bytes(case, chosen), host().llc_bytes),
            "prepared_bytes": packed.n_bytes,
            "huge_bytes": huge_page_bytes(),
            "op_spec_hash": op_spec(problem.op).hash,
            "kernel_version": kernel_version(item),
        }

    def take(self, request: Mapping[str, Any]) -> float:
        assert self._workload is not None
        clock, workload, wanted = system_clock(), self._workload, float(request["seconds"])
        one = mean_seconds(workload.run, 1, clock)
        if one < _LONG * wanted:  # of a longer turn the waking is no part worth speaking of
            one = mean_seconds(workload.run, max(1, math.ceil(wanted / max(one, 1e-9))), clock)
        return max(one, 1e-9) / workload.steps


def main() -> None:
    """Answers until stdin ends."""
    import kbench

    side = OpSide()
    about = {"version": kbench.__version__, "commit": current_commit(), "host_id": host().host_id}
    serve({"open": side.open, "take": side.take}, about)


if __name__ == "__main__":
    main()
