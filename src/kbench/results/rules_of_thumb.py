"""What common rules of thumb would cost: placements that fill the GPU, and all threads for everything.

A pure function of a tune's result, so that a stored one tells it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Less than this is as good: a difference that no run would show.
NOTICED = 1.01

# The tuner's name of each placement -> what people say.
_FILLING = {
    "whole layers": "as many whole layers on the GPU as fit, the last ones (llama.cpp's -ngl)",
    "front loading": "as many whole layers on the GPU as fit, the first ones",
    "n-cpu-moe": "all on the GPU, but for the routed experts of as few layers as must stay (llama.cpp's -ncmoe)",
    "attention first": "attention on the GPU, then dense parts, then experts, until it is full",
}
_PHASES = ("decode", "prefill")
# Beyond this a ratio is a mistake of its file.
_MAX_RATIO = 1e6
# A count of threads with more digits is no count.
_MAX_DIGITS = 6


def rules_of_thumb(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each rule of thumb, the time that it takes beside this plan's.

    Each has a ``name``, its ``words``, ``of`` (what was timed: ``workload``, or a phase's operations) and the ``ratio``
    of times: 1.2 takes a fifth longer. Where all threads are what the plan uses, it has nothing to say.
    """
    best = fields["solver"]["seconds"]
    rows = []
    for name, seconds in fields.get("presets", {}).items():
        if best > 0 and seconds > 0:
            rows.append(_row(name, _FILLING.get(name, name), "workload", seconds / best))
    counts = {int(n) for row in fields["ops"] for n in row.get("seconds_by_threads", {}) if _is_count(n)}
    most = max(counts, default=0)
    for phase in _PHASES:
        ratio = _all_threads(fields, phase, most)
        if ratio is not None:
            rows.append(_row(f"all threads in {phase}", f"all {most} threads for everything on the CPU", phase, ratio))
    return rows


def with_rules_of_thumb(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``fields`` as they are printed and stored."""
    return {**fields, "rules_of_thumb": rules_of_thumb(fields)}


def _is_count(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS


def _row(name: str, words: str, of: str, ratio: float) -> dict[str, Any]:
    return {"name": name, "words": words, "of": of, "ratio": min(ratio, _MAX_RATIO)}


def _all_threads(fields: Mapping[str, Any], phase: str, most: int) -> float | None:
    """The time of the phase's operations on the CPU with ``most`` threads, beside that with those of the plan."""
    plan = all_of_them = 0.0
    fewer = False
    for row in fields["ops"]:
        if row["phase"] != phase or row["device"] != "cpu" or row["op"] == "transfer":
            continue
        seconds = row.get("seconds_by_threads", {}).get(str(most))
        if seconds is None:
            return None
        fewer |= (row["threads"] or most) < most
        plan += row["n_calls"] * row["seconds"]
        all_of_them += row["n_calls"] * seconds
    return all_of_them / plan if fewer and plan > 0 else None
