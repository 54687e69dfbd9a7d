"""A side that times operations on a GPU, as ``python -m kbench.suites.gpu_side``; it answers as ``op_side`` does.

Weights lie on the GPU in as many copies as its cache needs to be cold, and are read in turn. Where every call of a
round can be captured, a round is one CUDA graph: what Python and the driver take to launch is not timed. Times are the
GPU's own, between two events.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kbench.core import Problem
from kbench.kernels import (
    Example,
    Prepared,
    StepState,
    TorchDevice,
    comparable,
    example_weights,
    interpreted,
    kernel_version,
    on_tensors,
    op_spec,
    runnable_on,
)
from kbench.measure import (
    Measurement,
    StoppingRule,
    host,
    is_cold,
    mean_seconds,
    rotation_count,
    serve,
    system_clock,
)
from kbench.results import current_commit

from .cell import Cell
from .copies import PackedCopies, family, first_example, seed, touched_bytes, variants
from .gpu import GPU
from .shrink import MAX_COPY_BYTES
from .verify import verify

# A round of calls is captured as long as its launches are nothing beside it, and short beside a sample.
_MAX_ROUND = 64
_WARM_ROUNDS = 2
# Events tell time in steps of half a microsecond: a thousandth of a sample at most.
_SAMPLE_SECONDS = 1e-3


def place() -> str:
    """Where ``GPU``'s tensors lie: in host memory where Triton interprets kernels, for tests."""
    return "cpu" if interpreted() else "cuda:0"


def cache_bytes() -> int:
    """Of the GPU's last-level cache."""
    if place() == "cpu":
        return 0
    import torch

    return int(torch.cuda.get_device_properties(0).L2_cache_size)


class HostBorder:
    """An implementation on the GPU, called with arrays in host memory: for the check."""

    def __init__(self, device: TorchDevice) -> None:
        self.device, self.name = device, device.name

    def accuracy(self, problem: Problem) -> str:
        return self.device.accuracy(problem)

    def run(self, call: Any, prepared: Prepared, inputs: Sequence[Any], state: StepState, threads: int) -> list[Any]:
        x, there = on_device(inputs, state, self.device)
        return [y.cpu().numpy() for y in self.device.compute(call, prepared, x, there)]


def on_device(inputs: Sequence[Any], state: StepState, device: TorchDevice) -> tuple[list[Any], StepState]:
    """Inputs and caches as tensors of ``device``."""
    import torch

    x = [torch.from_numpy(np.ascontiguousarray(a)).to(device.place) for a in inputs]
    return x, dataclasses.replace(state, caches=device.caches_of(state))


class GpuSide:
    """The turns."""

    def __init__(self) -> None:
        self._round: Callable[[], object] | None = None
        self._calls = 1

    def open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._round = None  # its weights go before new ones come
        problem, block = Problem.parse(request["problem"]), dict(request.get("block", {}))
        item = comparable(request["implementation"])
        for judged in (runnable_on(item, GPU), item.supports(problem)):
            if not judged.ok and place() != "cpu":
                return {"failed": "Unsupported", "found": judged.reason}
        device = on_tensors(item.name, place())
        if device is None:
            return {"failed": "Unsupported", "found": f"{item.name} keeps no tensors on a GPU"}
        rng = np.random.default_rng(seed(family(problem)))
        weights = example_weights(problem, rng)
        first = device.prepare(problem, weights, block)
        packed = PackedCopies(weights, _copies(problem, first), 0.0)
        case = first_example(Cell(problem, item.name, 1, block, GPU), problem, packed)
        checksum = 0
        for array in (*(weight.whole for weight in case.weights), *case.inputs, case.state.tokens):
            checksum = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data, checksum)
        judged_result = verify(HostBorder(device), case, first, 1)  # type: ignore[arg-type]
        if not judged_result.ok:
            return {"failed": "wrong", "found": judged_result.reason}
        chosen = variants(case, packed, cache_bytes())[:_MAX_ROUND]
        self._calls = len(chosen)
        self._round, captured = _ready(device, chosen)
        for _ in range(_WARM_ROUNDS):
            seconds = self._seconds(1)
        return {
            "call_seconds": seconds / self._calls,
            "checksum": checksum,
            "error_share": min(judged_result.worst, 1e9),
            "cold": is_cold(1, touched_bytes(case, chosen), cache_bytes()),
            "prepared_bytes": packed.n_bytes,
            "op_spec_hash": op_spec(problem.op).hash,
            "kernel_version": kernel_version(item),
            "captured": captured,
        }

    def take(self, request: Mapping[str, Any]) -> float:
        one = self._seconds(1)
        rounds = max(1, math.ceil(float(request["seconds"]) / max(one, 1e-9)))
        return max(self._seconds(rounds), 1e-9) / rounds / self._calls

    def measure(self, rule: StoppingRule) -> Measurement:
        """Turns until ``rule`` has seen enough of them."""
        rule.start()
        begin, samples = time.perf_counter(), list[float]()
        while not rule.done():
            samples.append(self.take({"seconds": _SAMPLE_SECONDS}))
            rule.add(samples[-1], time.perf_counter() - begin)
        return Measurement(tuple(samples), rule.reason, _WARM_ROUNDS * self._calls)

    def _seconds(self, rounds: int) -> float:
        """Of so many rounds, by the GPU's clock."""
        assert self._round is not None
        if place() == "cpu":
            return mean_seconds(self._round, rounds, system_clock()) * rounds
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        for _ in range(rounds):
            self._round()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def _copies(problem: Problem, first: Prepared) -> list[Prepared]:
    """``first`` and as many copies beside it on the GPU as make its cache cold."""
    if problem.op not in ("linear", "head_linear", "moe_router") or not first.n_bytes:
        return [first]
    cap = max(1, min(_MAX_ROUND, MAX_COPY_BYTES // first.n_bytes))
    count = rotation_count(first.n_bytes, cache_bytes(), cap)
    return [first, *(copy.deepcopy(first) for _ in range(count - 1))]


def _ready(device: TorchDevice, chosen: Sequence[tuple[Example, Prepared]]) -> tuple[Callable[[], object], bool]:
    """One round over ``chosen``, and whether it is a CUDA graph."""
    prepared_calls = [(one.call, prepared, *on_device(one.inputs, one.state, device)) for one, prepared in chosen]

    def run() -> None:
        for call, prepared, x, state in prepared_calls:
            device.compute(call, prepared, x, state)

    if device.place == "cpu":
        return run, False
    import torch

    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(beside):  # kernels are compiled, and libraries choose theirs, before anything is captured
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=beside):
            run()
    except RuntimeError:  # something in it waits for the GPU, as torch's routed experts do
        torch.cuda.synchronize()
        return run, False

    def replay() -> object:
        graph.replay()
        return prepared_calls  # which the graph reads

    return replay, True


def main() -> None:
    """Answers until stdin ends."""
    import kbench

    side = GpuSide()
    about = {"version": kbench.__version__, "commit": current_commit(), "host_id": host().host_id}
    serve({"open": side.open, "take": side.take}, about)


if __name__ == "__main__":
    main()
