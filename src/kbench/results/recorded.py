"""Recorded runs against each other: stored blocks, which are no pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kbench.core import UserError
from kbench.measure import ASSUMED_BETWEEN, Canary, Plan, between_runs, judge_unpaired, median

from .appendfile import read_whole_lines
from .record import Record
from .verdict_row import VerdictRow

# What two records must share to be compared, beside the case and the implementation.
_FIELDS = ("host_id", "op_spec_hash", "device", "unit", "direction", "source")
_EXTRA_FIELDS = ("cold", "subset")
# A machine whose canary is so much slower or faster than it was is another machine.
MAX_CANARY_CHANGE = 0.15

# (key, implementation, kernel parameters)
Identity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class CaseBlocks:
    """The blocks of one case: of each the median in seconds, or in units of which less is better. ``runs`` says which
    blocks were taken in one go; ``last`` is the newest record."""

    seconds: tuple[float, ...]
    runs: tuple[str, ...]
    last: Record

    def by_run(self) -> list[list[float]]:
        found: dict[str, list[float]] = {}
        for run, value in zip(self.runs, self.seconds, strict=True):
            found.setdefault(run, []).append(value)
        return list(found.values())

    def canary(self) -> Canary | None:
        return Canary.from_dict(track_fields(self.last).get("canary"))


def track_fields(record: Record) -> Mapping[str, Any]:
    """What ``kbench track record`` stores with a block: run, index, revision, commit_time, canary, conditions,
    discarded. Empty for other records."""
    found = record.extra.get("track")
    return found if isinstance(found, Mapping) else {}


def read_records(path: Path) -> list[Record]:
    """The records of one file.

    Raises:
        UserError: it cannot be read; CorruptFile, with the line, where it holds something else.
    """
    data, _ = read_whole_lines(path, 0)
    lines = data.split(b"\n")[:-1]
    return [Record.from_json(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def blocks_of(records: Iterable[Record]) -> dict[Identity, CaseBlocks]:
    """Measured times by case. A record is a block, if it is what the case took by itself (``Record.is_value``)."""
    found: dict[Identity, list[Record]] = {}
    for record in records:
        if record.is_value and record.unit != "ratio":
            block = json.dumps(record.extra.get("block", {}), sort_keys=True)
            found.setdefault((record.key, record.implementation, block), []).append(record)
    return {
        identity: CaseBlocks(
            tuple(_seconds(record) for record in members),
            tuple(str(track_fields(record).get("run", record.created)) for record in members),
            members[-1],
        )
        for identity, members in found.items()
    }


def _seconds(record: Record) -> float:
    value = record.median or 0.0
    return value if record.direction == "lower" else 1 / value


def difference(a: Record, b: Record) -> str:
    """The first field in which two records of one case are unlike, with both values; "" when they are alike."""
    for name in _FIELDS:
        x, y = getattr(a, name), getattr(b, name)
        if x != y:
            return f"{name}: {x or 'none'} and {y or 'none'}"
    for name in _EXTRA_FIELDS:
        x, y = a.extra.get(name), b.extra.get(name)
        if x != y and x is not None and y is not None:
            return f"{name}: {x} and {y}"
    return ""


def compare_recorded(
    a: Mapping[Identity, CaseBlocks],
    b: Mapping[Identity, CaseBlocks],
    plan: Plan,
    names: tuple[str, str],
    *,
    between: float = ASSUMED_BETWEEN,
    margins: Mapping[Identity, float] = {},
) -> list[VerdictRow]:
    """A row for every case of either side; those of one side alone are ``new`` or ``gone``, or ``unlike`` where the
    other has it with another thread count."""
    plan = replace(plan, n_comparisons=max(1, len(a.keys() & b.keys())))
    rows = []
    for identity in [*a, *(each for each in b if each not in a)]:
        one, other = a.get(identity), b.get(identity)
        chosen = replace(plan, margin=max(plan.margin, margins.get(identity, 0.0)))
        if one is not None and other is not None:
            rows.append(_row(identity, one, other, chosen, names, between))
            continue
        here = one or other
        assert here is not None
        reason = _other_threads(here.last, b if one is not None else a)
        status: Any = "unlike" if reason else "gone" if one is not None else "new"
        side = names[1 if one is not None else 0]
        rows.append(_empty(identity, here.last, names, plan, status, reason or f"{side} does not have it"))
    return rows


def _empty(
    identity: Identity, record: Record, names: tuple[str, str], plan: Plan, status: Any, reason: str
) -> VerdictRow:
    block = json.loads(identity[2])
    return VerdictRow(
        identity[0], *names, status, reason, implementation=record.implementation, margin=plan.margin,
        threads=record.threads, extra={"block": block} if block else {},
    )  # fmt: skip


def _other_threads(record: Record, others: Mapping[Identity, CaseBlocks]) -> str:
    counts = sorted(
        {
            str(other.last.threads)
            for other in others.values()
            if (other.last.op, other.last.problem, other.last.implementation)
            == (record.op, record.problem, record.implementation)
            and other.last.threads != record.threads
        }
    )
    return f"threads: {record.threads} and {', '.join(counts)}" if counts else ""


def _row(
    identity: Identity, a: CaseBlocks, b: CaseBlocks, plan: Plan, names: tuple[str, str], between: float
) -> VerdictRow:
    unlike = difference(a.last, b.last)
    head = replace(
        _empty(identity, b.last, names, plan, "ok", ""),
        n_blocks=(len(a.seconds), len(b.seconds)), a_seconds=median(a.seconds), b_seconds=median(b.seconds),
    )  # fmt: skip
    if unlike:
        return replace(head, status="unlike", reason=unlike)
    then, now = a.canary(), b.canary()
    if then is not None and now is not None and (changes := now.changed(then, MAX_CANARY_CHANGE)):
        return replace(head, status="disturbed", reason=f"the machine itself changed: {'; '.join(changes)}")
    j = judge_unpaired(a.seconds, b.seconds, plan, between)
    return replace(
        head, verdict=j.verdict.value, reason=j.reason, ratio=j.ratio, low=j.interval.low, high=j.interval.high,
        confidence=j.interval.confidence, p=j.p,
    )  # fmt: skip


def deviation_between_runs(records: Iterable[Record]) -> float | None:
    """This host's own deviation from run to run, from blocks of one commit that were recorded again and again."""
    by_commit: dict[str, list[Record]] = {}
    for record in records:
        if track_fields(record):
            by_commit.setdefault(record.commit, []).append(record)
    return between_runs(blocks.by_run() for members in by_commit.values() for blocks in blocks_of(members).values())


def one_host(blocks: Mapping[Identity, CaseBlocks], where: str) -> str:
    """The host that all of ``blocks`` are of.

    Raises:
        UserError: there are none, or of several hosts.
    """
    hosts = sorted({case.last.host_id for case in blocks.values()})
    if not hosts:
        raise UserError("no measured times", where=where, accepted="records of kbench track record or kbench bench")
    if len(hosts) > 1:
        raise UserError(f"records of {len(hosts)} hosts: {', '.join(hosts)}", where=where, accepted="one machine's")
    return hosts[0]


def hosts_differ(a: Path, b: Path) -> Sequence[str]:
    """In what the machines differ whose records lie in files ``a`` and ``b``, where their ``host.json`` say so."""
    one, other = (_host_json(path.parent / "host.json") for path in (a, b))
    if one is None or other is None:
        return ()
    return [f"{name}: {one[name]} and {other[name]}" for name in one if one[name] != other[name]]


def _host_json(path: Path) -> dict[str, Any] | None:
    try:
        said = json.loads(path.read_bytes())
        cpu, memory = said["cpu"], said["memory"]
        return {
            "CPU": str(cpu["model"])[:80],
            "cores": cpu["n_physical_cores"],
            "logical CPUs": cpu["n_logical_cpus"],
            "instruction sets": " ".join(cpu["flags"])[:400],
            "memory GiB": round(memory["total_bytes"] / 2**30),
            "GPUs": ", ".join(str(gpu["name"])[:80] for gpu in said["gpus"]) or "none",
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None
