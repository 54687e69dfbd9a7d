"""A suite that is a ladder, for `kbench bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .bench_output import print_keys, progress_of
from .output import print_json, shown, stderr_console, stdout_console

if TYPE_CHECKING:
    from kbench.results import Record
    from kbench.suites import Suite


def climb(loaded: Suite, pattern: str, dry_run: bool, as_json: bool) -> None:
    """Measures a suite that is a ladder and prints it."""
    from kbench.core import CheckBroken
    from kbench.measure import Guard, host
    from kbench.report import print_ladder
    from kbench.results import Store
    from kbench.suites import run_ladder, select_rungs, threads_of

    rungs = select_rungs(loaded.ladder, pattern) if pattern else loaded.ladder
    about = {"suite": loaded.name, "host_id": host().host_id}
    if dry_run:
        print_keys(about, map(str, rungs), as_json)
        return
    store, guard = Store(), Guard()
    with progress_of(loaded.name, len(rungs)) as progress:
        records = run_ladder(rungs, threads_of(loaded), store, progress=progress, suite=loaded.name)
    warnings = guard.warnings()
    if as_json:
        print_json("bench", 1, {**about, "rungs": [_rung(record) for record in records], "warnings": list(warnings)})
    else:
        print_ladder(stdout_console(), records, shown)
        for warning in warnings:
            stderr_console().print(f"warning: {shown(warning)}", markup=False)
        stderr_console().print(f"{len(records)} rungs on host {host().host_id}; records in {store.root}")
    broken = [record for record in records if record.status in ("wrong", "crashed")]
    if broken:
        first = broken[0]
        raise CheckBroken(
            f"{len(broken)} of {len(records)} rungs {first.status}: {first.reason}", where=first.implementation
        )


def _rung(record: Record) -> dict[str, Any]:
    """One rung for programs; raw samples are in the store."""
    rung = {k: v for k, v in record.extra["rung"].items() if k not in ("ratios", "against_samples")}
    return {
        "case": record.key,
        "implementation": record.implementation,
        "status": record.status,
        "reason": record.reason,
        "median_seconds": record.median,
        "n_pairs": len(record.extra["rung"].get("ratios", ())),
        **rung,
    }
