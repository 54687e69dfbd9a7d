"""Callbacks of options that take numbers: what is outside is told at once, not by whatever breaks of it later."""

from __future__ import annotations

import typer

from kbench.core import UserError, allowed_cpus, default_threads


def check_threads(value: int, where: str) -> None:
    """UserError unless there is a logical CPU for each of ``value`` threads: more of them wait for one another."""
    most = len(allowed_cpus())
    if not 1 <= value <= most:
        raise UserError(
            f"{value} threads", where=where, accepted=f"1 to {most}, the CPUs that this process may use",
            todo=f"without it: {default_threads()}, one per physical core",
        )  # fmt: skip


def usable_threads(parameter: typer.CallbackParam, value: int | None) -> int | None:
    """Callback: as ``check_threads``."""
    if value is not None:
        check_threads(value, parameter.opts[0])
    return value


def positive_seconds(parameter: typer.CallbackParam, value: float | None) -> float | None:
    """Callback: UserError for no time, less than none, or no number."""
    if value is not None and not value > 0:
        raise UserError(f"{value:g} seconds", where=parameter.opts[0], accepted="above 0")
    return value
