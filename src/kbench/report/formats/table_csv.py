"""Comma-separated values, RFC 4180: a row a case."""

from __future__ import annotations

import csv
import io

from kbench.core import shown

from .sheet import Sheet, names_of

_COLUMNS = (
    "name", "case", "implementation", "a", "b", "outcome", "ratio", "low", "high", "confidence", "n_pairs", "margin",
    "a_seconds", "b_seconds", "tokens", "threads", "host_id", "commit", "created", "reason",
)  # fmt: skip


def table_csv(sheet: Sheet) -> str:
    """Numbers in full precision; nothing for what is not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(_COLUMNS)
    for row, name in zip(sheet.rows, names_of(sheet.rows), strict=True):
        own = {"name": name, "host_id": sheet.host_id, "commit": sheet.commit, "created": sheet.created}
        writer.writerow([_cell(own[column] if column in own else getattr(row, column)) for column in _COLUMNS])
    return text.getvalue()


def _cell(value: object) -> object:
    """A spreadsheet runs what begins like a formula; names come from files of others."""
    if not isinstance(value, str):
        return value
    line = " ".join(shown(value).split())
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line
