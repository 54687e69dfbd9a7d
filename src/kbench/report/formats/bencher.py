"""Bencher Metric Format: benchmarks by name, each with its measures, each with a value and where it lies between.

``latency`` and ``throughput`` are measures that every project of Bencher has, in nanoseconds and operations per second.
"""

from __future__ import annotations

import json

from .sheet import Sheet, interval_seconds, names_of


def bencher(sheet: Sheet) -> str:
    """``latency`` of a call, ``throughput`` in tokens per second where there are tokens."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row, name in zip(sheet.rows, names_of(sheet.rows), strict=True):
        if not row.b_seconds or row.b_seconds <= 0:
            continue
        interval = interval_seconds(row)
        known = interval is not None and min(interval) > 0
        if row.tokens:
            metric = {"value": row.tokens / row.b_seconds}
            if known and interval is not None:
                metric |= {"lower_value": row.tokens / interval[1], "upper_value": row.tokens / interval[0]}
            found[name] = {"throughput": metric}
        else:
            metric = {"value": row.b_seconds * 1e9}
            if known and interval is not None:
                metric |= {"lower_value": interval[0] * 1e9, "upper_value": interval[1] * 1e9}
            found[name] = {"latency": metric}
    return json.dumps(found, indent=1) + "\n"
