"""The JSON that `pytest --benchmark-json` and `--benchmark-save` write, versions 3 to 5."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from .foreign import bounded, commit_name, foreign_host_id, utc
from .record import Record, case_key
from .shape import ListOf, Maybe, Number, Object, Text, check_shape

OP = "pytest_benchmark"

_MOST_RESULTS = 100_000
_MOST_SAMPLES = 1_000_000
_WANTED = "what pytest-benchmark writes with --benchmark-json"
_STATS = Object(
    {"min": Number(), "max": Number(), "mean": Number(), "median": Number(), "rounds": Number(1)},
    {"stddev": Number(), "iqr": Number(), "iterations": Number(), "data": ListOf(Number(), _MOST_SAMPLES)},
)
_FILE = Object(
    {
        "machine_info": Object(
            {},
            {name: Maybe(Text()) for name in ("node", "processor", "machine", "system", "release", "python_version")},
        ),
        "commit_info": Object({}, {"id": Maybe(Text()), "branch": Maybe(Text())}),
        "benchmarks": ListOf(
            Object(
                {"name": Text(), "fullname": Text(), "stats": _STATS},
                {"group": Maybe(Text()), "options": Object({}, {"timer": Text()})},
            ),
            _MOST_RESULTS,
        ),
        "datetime": Text(),
    },
    {"version": Text()},
)
# What a timer other than the wall clock measures is another quantity.
_WALL = ("", "perf_counter", "time.perf_counter", "default_timer", "deprecated")


def pytest_benchmark_records(data: Mapping[str, Any], where: str) -> list[Record]:
    """One record for each benchmark of a file's JSON.

    Raises:
        CorruptFile: a field is not what pytest-benchmark writes; the message has its path.
    """
    check_shape(data, _FILE, where, wanted=_WANTED)
    machine, about = _machine(data["machine_info"]), data["commit_info"]
    commit = commit_name(about.get("id") or "")
    if about.get("dirty") is True:
        commit = f"{commit[:70]}-dirty"
    created = utc(data["datetime"], where, "datetime")
    return [_record(one, machine, commit, created, data.get("version", "")) for one in data["benchmarks"]]


def _record(one: Mapping[str, Any], machine: Mapping[str, object], commit: str, created: str, version: str) -> Record:
    stats = one["stats"]
    problem = {"test": bounded(one["fullname"])}
    timer = str(one.get("options", {}).get("timer", ""))
    if timer not in _WALL:
        problem["timer"] = bounded(timer)
    samples = tuple(float(value) for value in stats.get("data", ()))
    return Record(
        key=case_key(OP, problem),
        op=OP,
        implementation="pytest",
        problem=problem,
        samples=samples,
        # Of the raw samples, where there are any: the two must not tell different stories.
        median=statistics.median(samples) if samples else float(stats["median"]),
        host_id=foreign_host_id(machine),
        commit=commit,
        created=created,
        extra={
            "imported": {
                "tool": "pytest-benchmark",
                "version": bounded(version),
                "machine": dict(machine),
                **{name: stats[name] for name in ("min", "mean", "stddev", "iqr", "rounds") if name in stats},
            }
        },
    )


def _machine(info: Mapping[str, Any]) -> dict[str, object]:
    """What makes a machine another: no host name, which every CI job has another of, and no clock of the moment."""
    cpu = info.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    brand = cpu.get("brand_raw") or cpu.get("brand") or ""
    count = cpu.get("count")
    return {
        "cpu": bounded(brand) if isinstance(brand, str) else "",
        "cpus": count if isinstance(count, int) and abs(count) < 1 << 20 else 0,
        "machine": bounded(info.get("machine") or ""),
        "system": bounded(info.get("system") or ""),
    }
