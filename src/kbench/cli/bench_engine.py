"""Engine cases of a suite for `kbench bench`: whole models that load, read prompts and generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .bench_output import progress_of

if TYPE_CHECKING:
    from kbench.results import Record, Store
    from kbench.suites import EngineCase


def measure_engine(cases: Sequence[EngineCase], store: Store, fresh: bool, suite: str) -> list[Record]:
    """The cases' records, with a progress bar."""
    from kbench.suites import run_engine_cases

    with progress_of(suite, len(cases)) as progress:
        return run_engine_cases(cases, store, progress=progress, fresh=fresh, suite=suite)


def engine_row(record: Record) -> dict[str, Any]:
    """One record for programs; raw samples are in the store."""
    said = record.extra["engine"]
    return {
        "case": record.key,
        "measured": record.op,
        "status": record.status,
        "reason": record.reason,
        "unit": record.unit,
        "median_seconds": record.median,
        "n_samples": len(record.samples),
        **{name: value for name, value in said.items() if name not in ("rules_crc", "repetitions")},
    }
