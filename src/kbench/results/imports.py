"""Results of other tools as records: which tool wrote a file, and what is the same for all of them.

Their files are untrusted like any other: every field that is used is checked, and an error names the line of broken
JSON or the path of the wrong field. What they say of their machine becomes a host id of its own, ``import-...``: their
numbers are never taken for this machine's unless somebody says that it is the same one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kbench.core import CorruptFile, UserError, shown

from .import_llama_bench import llama_bench_records
from .import_pytest_benchmark import pytest_benchmark_records
from .record import Record
from .store import Store

SUITE = "import"
_ACCEPTED = "the JSON of pytest-benchmark (--benchmark-json), or of llama-bench (-o json, -o jsonl)"

# A thousand benchmarks with ten thousand raw samples each.
_MAX_BYTES = 256 << 20


def read_foreign(path: Path, host_id: str | None = None) -> list[Record]:
    """The records of another tool's file; ``host_id`` in place of the id of the machine that the file names.

    Raises:
        UserError: there is no such file.
        CorruptFile: it is no tool's, or a field is not what that tool writes.
    """
    data, lines = _documents(path)
    if isinstance(data, dict) and "benchmarks" in data:
        records = pytest_benchmark_records(data, str(path))
    elif lines:
        records = [record for number, one in lines for record in llama_bench_records([one], f"{path}:{number}")]
    elif isinstance(data, list):
        records = llama_bench_records(data, str(path))
    else:
        raise CorruptFile("JSON of no known tool", where=str(path), accepted=_ACCEPTED)
    if not records:
        raise CorruptFile("no results", where=str(path), accepted=_ACCEPTED)
    return records if host_id is None else [replace(record, host_id=host_id) for record in records]


def import_records(records: Sequence[Record], store: Store) -> int:
    """Stores what is not there yet; how many that were."""

    def identity(record: Record) -> tuple[object, ...]:
        return record.key, record.implementation, record.commit, record.created, record.median

    known = {identity(r) for host_id in {r.host_id for r in records} for r in store.read(host_id)}
    fresh = [record for record in records if identity(record) not in known]
    store.append(fresh, suite=SUITE)
    return len(fresh)


def _documents(path: Path) -> tuple[Any, list[tuple[int, Any]]]:
    """The JSON of ``path``; or, with nothing for it, the objects of its lines with their numbers."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), accepted=_ACCEPTED) from None
    if len(data) > _MAX_BYTES:
        raise CorruptFile(f"more than {_MAX_BYTES >> 20} MiB", where=str(path), accepted=_ACCEPTED)
    try:
        return json.loads(data), []
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data") or not data.lstrip().startswith(b"{"):
            where = f"{path}:{error.lineno}:{error.colno}"
            raise CorruptFile(f"no JSON: {error.msg}", where=where, accepted=_ACCEPTED) from None
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"no JSON: {shown(str(error))[:80]}", where=str(path), accepted=_ACCEPTED) from None
    found = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append((number, json.loads(line)))
        except (ValueError, RecursionError):
            raise CorruptFile(
                "no JSON", where=f"{path}:{number}", accepted="one result of llama-bench a line"
            ) from None
    return None, found
