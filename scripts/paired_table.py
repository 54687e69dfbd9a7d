"""Prints what the ``paired_*`` scripts have stored, as the tables of ``docs/performance.md``.

    python scripts/paired_table.py results

The newest record of each comparison, of this machine or of ``--host``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from kbench.measure import host, median
from kbench.results import Record, Store

# Prefill and decode of one file stand in one row.
_ENGINE_OPS = ("paired_prefill", "paired_decode")


def newest(records: Iterable[Record]) -> list[Record]:
    """The last record of each comparison, in the order in which comparisons were first made."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        found[record.key, record.implementation] = record
    return list(found.values())


def figures(record: Record | None) -> tuple[str, str, str]:
    """Our rate, their rate, the ratio with its interval."""
    if record is None:
        return "", "", ""
    ours, theirs = (f"{median(record.extra[name]):.4g}" for name in ("our_rates", "their_rates"))
    low, high = record.extra["interval"]
    return ours, theirs, f"**{record.median:.2f}** ({low:.2f} to {high:.2f})"


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def engines(records: Sequence[Record]) -> None:
    """A row for each file, kbench's precision and peer."""
    rows: dict[tuple[str, str, str], dict[str, Record]] = {}
    for record in newest(records):
        key = (str(record.problem["model"]), record.implementation, str(record.problem["against"]))
        rows.setdefault(key, {})[f"{record.op} {record.problem['n']}"] = record
    lengths = list(dict.fromkeys(op for found in rows.values() for op in found))
    for pair in zip(lengths[::2], lengths[1::2], strict=True):
        prompt, generated = (op.split()[1] for op in pair)
        print(f"\n### Engines: prefill of {prompt} tokens, decode of {generated}; tokens/s\n")
        head = ["file", "kbench", "against"]
        head += [
            f"{name}{n} {side}"
            for name, n in (("pp", prompt), ("tg", generated))
            for side in ("kbench", "peer", "ratio")
        ]
        chosen = {key: found for key, found in rows.items() if any(op in found for op in pair)}
        print_table(
            head,
            [
                (model, ours.removeprefix("kbench:"), theirs, *(cell for op in pair for cell in figures(found.get(op))))
                for (model, ours, theirs), found in chosen.items()
            ],
        )


def others(op: str, records: Sequence[Record]) -> None:
    print(f"\n### {op.removeprefix('paired_')}; {records[0].extra['rate_unit']}\n")
    rows = []
    for record in newest(records):
        params = {name: value for name, value in record.problem.items() if name != "against"}
        what = " ".join(str(value) if name == "model" else f"{name}={value}" for name, value in params.items())
        ours, theirs, ratio = figures(record)
        rows.append((what, record.implementation, ours, record.problem["against"], theirs, ratio))
    print_table(("what", "ours", "", "against", "", "ratio"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="the folder given to --store")
    parser.add_argument("--host", help="host_id [this machine]")
    parser.add_argument("--commit", default="", help="only records of the commit that starts with this")
    options = parser.parse_args()
    records = [
        record
        for record in Store(options.store).find(host_id=options.host or host().host_id)
        if record.op.startswith("paired_") and record.commit.startswith(options.commit)
    ]
    engine_records = [record for record in records if record.op in _ENGINE_OPS]
    engines(engine_records)
    for op in dict.fromkeys(record.op for record in records):
        if op not in _ENGINE_OPS:
            others(op, [record for record in records if record.op == op])


if __name__ == "__main__":
    main()
