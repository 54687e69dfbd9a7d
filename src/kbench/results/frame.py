"""Records as a pandas table: a row a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbench.measure import quartiles

from .record import Record

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("created", "host_id", "commit", "key", "op", "implementation", "threads", "status", "unit", "direction",
            "median", "source", "op_spec_hash", "reason")  # fmt: skip


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """The records' fields as columns, with ``q1``, ``q3`` and ``n_samples`` of their samples, and one column
    ``problem.NAME`` for each parameter of a problem that any of them has."""
    import pandas as pd

    rows = []
    for record in records:
        row = {name: getattr(record, name) for name in _COLUMNS}
        q1, _, q3 = quartiles(record.samples) if record.samples else (None, None, None)
        row |= {"n_samples": len(record.samples), "q1": q1, "q3": q3}
        row |= {f"problem.{name}": value for name, value in record.problem.items()}
        rows.append(row)
    table = pd.DataFrame(rows, columns=None if rows else [*_COLUMNS, "n_samples", "q1", "q3"])
    table["created"] = pd.to_datetime(table["created"], utc=True, errors="coerce", format="ISO8601")
    return table
