"""What a tune was asked to be fast at, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_GOALS = {
    "decode": " for writing",
    "prefill": " for reading a prompt",
    "ttft": " for the first token",
    "balanced": " for reading and writing alike",
}


def sequences(fields: Mapping[str, Any]) -> float:
    """Decoded at once; results of before there were batches have one."""
    return max(1.0, float(fields["workload"].get("batch", 1)))


def step_words(fields: Mapping[str, Any]) -> str:
    """What one step of decoding makes."""
    n = sequences(fields)
    return "one written token" if n == 1 else f"one written token of each of {n:g} sequences"


def goal_words(fields: Mapping[str, Any]) -> str:
    """With a blank before; empty for the time of the whole workload, which is what is usually asked."""
    return _GOALS.get(fields["workload"].get("objective", ""), "")
