"""Cells of a suite for `kbench bench`: rows of numbers, and their table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbench.core import CPU

from .output import shown, stdout_console

if TYPE_CHECKING:
    from kbench.core import Work
    from kbench.results import Record


def op_row(record: Record) -> dict[str, Any]:
    """The numbers of one record: times in seconds, rates per second."""
    from kbench.measure import quartiles

    done = _work(record)
    row: dict[str, Any] = {
        "case": record.key,
        "implementation": record.implementation,
        "block": record.extra.get("block", {}),
        "device": record.device,
        "status": record.status,
        "reason": record.reason,
        "median_seconds": record.median,
        "q1_seconds": None,
        "q3_seconds": None,
        "n_samples": len(record.samples),
        "bytes_touched": done.bytes_touched if done is not None else None,
        "flops": done.flops if done is not None else None,
        "bytes_per_s": None,
        "flops_per_s": None,
        "ai_touched": done.ai_touched if done is not None else None,
        "ai_resident": done.ai_resident if done is not None else None,
        "subset": record.extra.get("subset", ""),
        "cold": record.extra.get("cold"),
        "prepare_seconds": record.extra.get("prepare_seconds"),
        "prepared_bytes": record.extra.get("prepared_bytes"),
    }
    if record.median and done is not None:
        row["q1_seconds"], _, row["q3_seconds"] = quartiles(record.samples)
        row["bytes_per_s"], row["flops_per_s"] = done.bytes_touched / record.median, done.flops / record.median
    return row


def _work(record: Record) -> Work | None:
    """None for a shape that cannot be, such as half a block of weights a row: its record says so, and is no time."""
    from kbench.core import KbenchError, work

    try:
        return work(record.core_problem())
    except KbenchError:
        return None


def print_ops(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("case", overflow="fold")
    table.add_column("implementation")
    for name in ("median µs", "quartiles µs", "GB/s", "GFLOP/s", "FLOP/byte"):
        table.add_column(name, justify="right")
    for row in rows:
        case = row["case"] + (f" [{row['subset']}]" if row["subset"] else "")
        where = () if row["device"] == str(CPU) else (row["device"],)
        chosen = " ".join((row["implementation"], *where, *(f"{name}={value}" for name, value in row["block"].items())))
        head = (Text(shown(case)), Text(shown(chosen)))  # a suite's words are no markup
        if row["median_seconds"] is None:
            table.add_row(*head, row["status"], Text(shown(row["reason"][:60])))
            continue
        quartiles = f"{row['q1_seconds'] * 1e6:.1f}–{row['q3_seconds'] * 1e6:.1f}"
        rates = (f"{row[name] / 1e9:.1f}" for name in ("bytes_per_s", "flops_per_s"))
        table.add_row(*head, f"{row['median_seconds'] * 1e6:.1f}", quartiles, *rates, f"{row['ai_touched']:.2f}")
    stdout_console().print(table)
