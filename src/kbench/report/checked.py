"""The two predictions of a tune that ran its model: one chose the placement, one was made in turns with the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbench.results import IN_TURNS, STORED

from .chart import Fields
from .tables import rate


def planned(fields: Fields) -> Mapping[str, Any]:
    """The rates that chose the placement, of which all other figures of a plan are; files of before have one prediction
    alone."""
    rates: Mapping[str, Any] = fields.get("planned") or fields["predicted"]
    return rates


def check_line(fields: Fields) -> str:
    """Which prediction was checked, and when; empty where nothing was run."""
    check = fields.get("check")
    if not check:
        return ""
    rates = planned(fields)
    said = f"{rate(rates['decode_tokens_per_s'])} and {rate(rates['prefill_tokens_per_s'])} tokens/s"
    how = (
        f"predicted in turns with the run; prices that said {said} chose the placement"
        if check["prediction"] == IN_TURNS
        else "predicted by the prices that chose the placement: they could not be measured again beside the run"
    )
    return f"{how}; run of {check['created'][:16]}, --remeasure repeats it" if check["run"] == STORED else how
