"""A suite of claims for `kbench bench`: what people say, measured here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbench.core import UserError

from .bench_output import print_keys, progress_of, raise_broken
from .output import print_json, shown, stderr_console, stdout_console

if TYPE_CHECKING:
    from kbench.results import Record
    from kbench.suites import Suite


def check_claims(loaded: Suite, pattern: str, model: str, given: Sequence[str], dry_run: bool, as_json: bool) -> None:
    """Measures a suite's claims and prints them."""
    from kbench.measure import Guard, host
    from kbench.report import print_claims
    from kbench.results import Store
    from kbench.suites import ClaimBench, ClaimFiles, run_claims, select_claims, threads_of
    from kbench.tuner import load_profile

    if given and not model:
        raise UserError("no model that it is another quantization of", where="--with", todo="add --model")
    claims = select_claims(loaded.claims, pattern) if pattern else loaded.claims
    about = {"suite": loaded.name, "host_id": host().host_id}
    if dry_run:
        print_keys(about, map(str, claims), as_json)
        return
    files = ClaimFiles(Path(model), _files(given)) if model else None
    store, guard = Store(), Guard()
    with progress_of(loaded.name, len(claims)) as progress:
        bench = ClaimBench(threads_of(loaded), files, lambda gpu: load_profile(gpu).bandwidth)
        records = run_claims(claims, bench, store, progress=progress, suite=loaded.name)
    warnings, made = list(guard.warnings()), files.made if files is not None else []
    if as_json:
        fields = {**about, "claims": [_claim(record) for record in records], "files": made, "warnings": warnings}
        print_json("bench", 1, fields)
    else:
        print_claims(stdout_console(), records, shown)
        for text in (*made, *(f"warning: {warning}" for warning in warnings)):
            stderr_console().print(shown(text), markup=False, soft_wrap=True)
        stderr_console().print(f"{len(records)} claims on host {host().host_id}; records in {store.root}")
    raise_broken(records, "claims")


def _files(given: Sequence[str]) -> dict[str, Path]:
    """``QUANT=FILE`` each."""
    files = {}
    for text in given:
        quant, _, path = text.partition("=")
        if not quant or not path:
            raise UserError(f"{text!r}", where="--with", accepted="QUANT=FILE, e.g. F16=model.F16.gguf")
        files[quant.upper()] = Path(path)
    return files


def _claim(record: Record) -> dict[str, Any]:
    """One claim for programs."""
    said = {"check": record.op.removeprefix("claim."), "status": record.status, "reason": record.reason}
    return {**said, **record.extra["claim"], "problem": dict(record.problem)}
