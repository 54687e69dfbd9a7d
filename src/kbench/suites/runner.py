"""Measures cells: checks each against the definition, times it cold, and stores a record whatever happens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kbench.core import CPU, Block, KbenchError, Problem
from kbench.kernels import (
    Example,
    Implementation,
    accuracy_of,
    block_errors,
    implementation,
    kernel_version,
    op_spec,
    packing,
    support,
)
from kbench.measure import Hopeless, Measurement, RelativeNoise, StoppingRule, Warmup, host, is_cold, measure
from kbench.results import Record, Store

from .cell import Cell
from .copies import (
    PackedCopies,
    cold_bytes,
    distinct_experts,
    family,
    first_example,
    pack_copies,
    touched_bytes,
    variants,
)
from .failure import failure_of
from .gpu import GPU, has_gpu, why_not
from .gpu_side import GpuSide
from .shrink import Part, part_of
from .verify import verify
from .workload import ready

# Called before each cell, and once at the end: (cells done, cells, what comes next).
Progress = Callable[[int, int, str], None]

_WARMUP = Warmup(min_calls=1, max_calls=6, max_seconds=0.1)
# What a tuner adds up are sums of many medians: 2 % each is plenty, and a cell then takes 0.1 to 0.4 s.
_TARGET, _MIN_SAMPLES, _MAX_SAMPLES, _MAX_SECONDS = 0.02, 7, 400, 0.25


def default_stopping() -> StoppingRule:
    """For a cell of a suite: quick."""
    return RelativeNoise(_TARGET, min_samples=_MIN_SAMPLES, max_samples=_MAX_SAMPLES, max_seconds=_MAX_SECONDS)


def run_cells(
    cells: Iterable[Cell],
    store: Store | None,
    *,
    stopping: Callable[[], StoppingRule] | StoppingRule | None = None,
    progress: Progress | None = None,
    verify: bool = True,
    fresh: bool = True,
    suite: str = "local",
    limit_seconds: float | None = None,
) -> list[Record]:
    """One record per cell, in the order of ``cells``.

    Cells that share weights are measured one after another, whatever their order. A cell that has an ``ok`` record
    of this host, definition and kernel version in ``store`` is not measured again. A cell that fails is a record too
    (``unsupported``, ``wrong``, ``crashed``) with the reason, and never holds a time.

    Args:
        store: where records go, each as soon as it is made; None keeps them in memory.
        stopping: when a cell has been sampled enough; default ``default_stopping``.
        verify: False skips the check against the definition.
        fresh: False measures again what has a record.
        suite: names the file that records go to.
        limit_seconds: a cell that is surely slower is not sampled further.
    """
    wanted = list(cells)
    known = known_records(wanted, store) if store is not None and fresh else {}
    records: dict[int, Record] = {}
    with _Bench(stopping, verify, limit_seconds) as bench:
        for done, index in enumerate(sorted(range(len(wanted)), key=lambda i: _order(wanted[i], i))):
            cell = wanted[index]
            if progress is not None:
                progress(done, len(wanted), str(cell))
            kept = known.get(_identity(cell))
            if kept is None:
                kept = bench.record(cell)
                if store is not None:
                    store.append(kept, suite=suite)
            records[index] = kept
    if progress is not None and wanted:
        progress(len(wanted), len(wanted), "")
    return [records[index] for index in range(len(wanted))]


def _order(cell: Cell, index: int) -> tuple[str, str, int]:
    return (family(cell.problem).key, packing(cell.implementation, cell.block), index)


def _identity(cell: Cell) -> tuple[str, str, tuple[tuple[str, int | str], ...], str]:
    return (cell.key, cell.implementation, tuple(sorted(cell.block.items())), str(cell.device))


def known_records(
    cells: Sequence[Cell], store: Store, *, run_tokens: int | None = None
) -> dict[tuple[Any, ...], Record]:
    """Records that stand for ``cells``, by identity; the newest of each, or of those that were timed in place in runs
    of ``run_tokens`` tokens."""
    wanted = {_identity(cell): cell for cell in cells}
    found: dict[tuple[Any, ...], Record] = {}
    for record in store.find(host_id=host().host_id, status="ok", source="measured"):
        identity = _identity_of(record)
        cell = wanted.get(identity) if identity else None
        if not identity or cell is None or not stands_for(record, cell.problem, cell.implementation):
            continue
        if run_tokens is None or record.extra.get("run_tokens") == run_tokens:
            found[identity] = record
    return found


def _identity_of(record: Record) -> tuple[Any, ...] | None:
    block = record.extra.get("block", {})
    if not isinstance(block, dict) or not all(isinstance(value, (int, str)) for value in block.values()):
        return None
    return (record.key, record.implementation, tuple(sorted(block.items())), record.device)


def stands_for(record: Record, problem: Problem, name: str) -> bool:
    """Whether ``record`` is of this machine, and of ``problem`` and the implementation ``name`` as they are now."""
    return (
        record.host_id == host().host_id
        and record.implementation == name
        and record.op_spec_hash == op_spec(problem.op).hash
        and record.extra.get("kernel_version") == version_of(name)
        and _identity_of(record) is not None
    )


def records_of(problem: Problem, name: str, store: Store) -> list[Record]:
    """What ``store`` knows of ``problem`` by itself, by the implementation ``name`` on the CPU, with any threads and
    kernel parameters; oldest first."""
    start = problem.key[:-1]
    found = store.find(host_id=host().host_id, implementation=name, status="ok", source="measured", op=problem.op)
    found = [record for record in found if record.device == str(CPU) and not record.extra.get("in_place")]
    return [r for r in found if r.key.startswith((f"{start},", f"{start})")) and stands_for(r, problem, name)]


def version_of(name: str) -> str:
    """Of the kernels behind an implementation's name; empty for none."""
    try:
        return kernel_version(implementation(name))
    except KbenchError:
        return ""


class _Bench:
    """Keeps the packed weights of the family at hand from cell to cell."""

    def __init__(
        self, stopping: Callable[[], StoppingRule] | StoppingRule | None, check: bool, limit_seconds: float | None
    ) -> None:
        self._stopping, self._check, self._limit_seconds = stopping, check, limit_seconds
        self._packed: tuple[tuple[str, str], PackedCopies] | None = None
        self._experts_checked: set[tuple[str, bool, str]] = set()

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._packed = None

    def record(self, cell: Cell) -> Record:
        """Measures one cell; never raises for what the cell does."""
        if cell.device != CPU and (cell.device != GPU or not has_gpu()):
            return self._failed(cell, "unsupported", why_not(cell.device, cell.implementation))
        try:
            if cell.device != CPU:
                return self._on_gpu(cell)
            item = implementation(cell.implementation)
            verdict = support(item, cell.problem)
            if not verdict.ok:
                return self._failed(cell, "unsupported", verdict.reason)
            for error in block_errors(cell.block, [(item.name, CPU)]).values():
                raise error
            return self._measured(cell, item)
        except Exception as error:
            return self._failed(cell, *failure_of(error))

    def _on_gpu(self, cell: Cell) -> Record:
        side = GpuSide()
        extra = side.open({"problem": cell.problem.key, "implementation": cell.implementation, "block": cell.block})
        if "failed" in extra:
            return self._failed(cell, "wrong" if extra["failed"] == "wrong" else "unsupported", extra["found"])
        del extra["op_spec_hash"], extra["kernel_version"]
        return Record.make(
            cell.problem,
            cell.implementation,
            threads=cell.threads,
            result=side.measure(self._rule(1.0)),
            device=str(cell.device),
            op_spec_hash=op_spec(cell.problem.op).hash,
            extra={**self._about(cell), **extra},
        )

    def _failed(self, cell: Cell, status: Any, reason: str, **extra: Any) -> Record:
        return Record.make(
            cell.problem,
            cell.implementation,
            threads=cell.threads,
            status=status,
            reason=reason,
            device=str(cell.device),
            op_spec_hash=op_spec(cell.problem.op).hash,
            extra={**self._about(cell), **extra},
        )

    def _about(self, cell: Cell) -> dict[str, Any]:
        return {"block": dict(cell.block), "kernel_version": version_of(cell.implementation)}

    def _measured(self, cell: Cell, item: Implementation) -> Record:
        part = part_for(item, cell.problem)
        packed = self._weights(item, part, cell.block)
        case = first_example(cell, part.problem, packed)
        extra: dict[str, Any] = {"prepare_seconds": packed.prepare_seconds, "prepared_bytes": packed.n_bytes}
        if part.note:
            extra["subset"] = part.note
        if self._check and self._due(case, item):
            verdict = verify(item, case, packed.copies[0], cell.threads)
            extra["error_share"] = float(min(verdict.worst, 1e9))  # an infinity is no JSON number
            if not verdict.ok:
                return self._failed(cell, "wrong", verdict.reason, **extra)
        chosen = variants(case, packed)
        touched = touched_bytes(case, chosen)
        workload = ready(item, chosen, cell.threads)
        extra |= {
            "copies": len(chosen),
            "cold": is_cold(1, touched, host().llc_bytes),
            "steps": workload.steps,
        }
        if cell.problem.op == "moe_experts":
            extra["distinct_experts"] = distinct_experts(chosen) * part.scale
        factor = part.scale / workload.steps
        measurement = measure(workload.run, stopping=self._rule(factor), warmup=_WARMUP)
        return Record.make(
            cell.problem,
            cell.implementation,
            threads=cell.threads,
            result=_scaled(measurement, factor),
            op_spec_hash=op_spec(cell.problem.op).hash,
            extra={**self._about(cell), **extra},
        )

    def _rule(self, factor: float) -> StoppingRule:
        """``factor``: what a sample is multiplied with to give the cell's seconds."""
        if self._stopping is None:
            rule: StoppingRule = default_stopping()
        else:
            rule = self._stopping() if callable(self._stopping) else self._stopping
        return rule if self._limit_seconds is None else Hopeless(rule, self._limit_seconds / factor)

    def _weights(self, item: Implementation, part: Part, block: Block) -> PackedCopies:
        key = (family(part.problem).key, packing(item.name, block))
        if self._packed is None or self._packed[0] != key:
            self._packed = None  # the old copies go before the new ones come
            self._packed = (key, pack_copies(item, part.problem, block))
        return self._packed[1]

    def _due(self, case: Example, item: Implementation) -> bool:
        """Experts are checked once per shape for one token and once for more: their truth takes a second."""
        if case.call.op != "moe_experts":
            return True
        key = (family(case.call.problem).key, case.call.problem.integer("tokens") > 1, item.name)
        if key in self._experts_checked:
            return False
        self._experts_checked.add(key)
        return True


def part_for(item: Implementation, problem: Problem) -> Part:
    """The part of ``problem`` that is measured: native weights stay as stored, others become floats."""
    if item.name.startswith("cpu."):
        return part_of(problem, cold_bytes())
    return part_of(problem, cold_bytes(), 2.0 if accuracy_of(item, problem) in ("bf16", "f16") else 4.0)


def _scaled(measurement: Measurement, factor: float) -> Measurement:
    return dataclasses.replace(
        measurement,
        samples_seconds=tuple(sample * factor for sample in measurement.samples_seconds),
        first_seconds=measurement.first_seconds * factor,
    )
