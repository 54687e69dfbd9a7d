"""What github-action-benchmark takes as ``customSmallerIsBetter`` and ``customBiggerIsBetter``: one value a name.

A file has one direction, so a case is in both: seconds in the one, a rate in the other. Give the action the one that
your alert threshold is meant for.
"""

from __future__ import annotations

import json
from typing import Any

from .sheet import Sheet, in_words, interval_seconds, names_of


def smaller_is_better(sheet: Sheet) -> str:
    """Seconds of a call, or of a token."""
    return _file(sheet, bigger=False)


def bigger_is_better(sheet: Sheet) -> str:
    """Calls, or tokens, per second."""
    return _file(sheet, bigger=True)


def _file(sheet: Sheet, bigger: bool) -> str:
    found = []
    for row, name in zip(sheet.rows, names_of(sheet.rows), strict=True):
        if not row.b_seconds or row.b_seconds <= 0:
            continue
        n, what = (row.tokens, "token") if row.tokens else (1, "call")
        one: dict[str, Any] = {
            "name": name,
            "unit": f"{what}s/s" if bigger else f"s/{what}",
            "value": n / row.b_seconds if bigger else row.b_seconds / n,
        }
        interval = interval_seconds(row)
        if interval is not None and min(interval) > 0:
            low, high = (n / interval[1], n / interval[0]) if bigger else (interval[0] / n, interval[1] / n)
            one["range"] = f"± {(high - low) / 2:.3g}"
        one["extra"] = f"{in_words(row)}\nhost {sheet.host_id}, against {row.a}"
        found.append(one)
    return json.dumps(found, indent=1, ensure_ascii=True) + "\n"
