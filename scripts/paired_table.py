"""Prints what the ``paired_*`` scripts have stored, as the tables of ``docs/performance.md``.

    python scripts/paired_table.py results

The newest record of each comparison, of this machine or of ``--host``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from kbench.measure import host, median
from kbench.results import Record, Store


def newest(records: Iterable[Record]) -> list[Record]:
    """The last record of each comparison, in the order in which comparisons were first made."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        found[record.key, record.implementation] = record
    return list(found.values())


def row(record: Record) -> str:
    extra, unit = record.extra, record.extra["rate_unit"]
    params = {name: value for name, value in record.problem.items() if name != "against"}
    what = str(params.pop("model", "")) or "linear"
    what += " " + " ".join(f"{name}={value}" for name, value in params.items())
    low, high = extra["interval"]
    ours, theirs = (f"{median(extra[name]):.4g} {unit}" for name in ("our_rates", "their_rates"))
    cells = (what, record.implementation, ours, record.problem["against"], theirs, f"{record.median:.2f}",
             f"{low:.2f} to {high:.2f}", len(record.samples))  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="the folder given to --store")
    parser.add_argument("--host", help="host_id [this machine]")
    parser.add_argument("--commit", help="only records of the commit that starts with this")
    options = parser.parse_args()
    records = [
        record
        for record in Store(options.store).find(host_id=options.host or host().host_id)
        if record.op.startswith("paired_") and record.commit.startswith(options.commit or "")
    ]
    for op in dict.fromkeys(record.op for record in records):
        print(f"\n### {op.removeprefix('paired_')}\n")
        print("| what | ours | rate | against | rate | ratio, median of pairs | ≥ 95 % interval | pairs |")
        print("|---|---|---|---|---|---|---|---|")
        for record in newest(record for record in records if record.op == op):
            print(row(record))


if __name__ == "__main__":
    main()
