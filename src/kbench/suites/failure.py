"""What an error in a case says in its record: a failing case is a record, not the end of the run."""

from __future__ import annotations

from typing import Literal

from kbench.core import CheckBroken, KbenchError


def failure_of(error: Exception) -> tuple[Literal["wrong", "unsupported", "crashed"], str]:
    """The status and the reason of a record."""
    if isinstance(error, CheckBroken):
        return "wrong", error.message
    if isinstance(error, KbenchError):
        return "unsupported", error.message
    if isinstance(error, MemoryError):
        return "crashed", "out of memory"
    return "crashed", f"{type(error).__name__}: {error}"
