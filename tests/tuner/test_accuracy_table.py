"""docs/accuracy.md's table: what a row says of the rounds that it was made of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kbench.results import Record

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from accuracy_table import DOCUMENT, Outcome, document, summary


def record(predicted: float, measured: tuple[float, ...], phase: str = "decode", spread: float = 0.1) -> Record:
    """The machine drifts from round to round, and prediction and measurement with it."""
    values = [predicted * sample / measured[0] for sample in measured]
    return Record.make(
        ("prediction", {"file": "m.gguf", "phase": phase, "depth": 512}),
        "kbench",
        threads=2,
        result=measured,
        unit="tokens/s",
        direction="higher",
        extra={
            "predicted": values,
            "low": [value * (1 - spread) for value in values],
            "high": [value * (1 + spread) for value in values],
        },
    )


def test_drift_cancels() -> None:
    found = Outcome.of(record(104.0, (100.0, 80.0, 120.0)))
    assert found.ratio == pytest.approx(1.04) and found.error == pytest.approx(0.04)
    assert found.covered
    assert not Outcome.of(record(104.0, (100.0, 80.0, 120.0), spread=0.01)).covered


def test_too_slow_is_an_error_as_too_fast_is() -> None:
    assert Outcome.of(record(90.0, (100.0,))).error == pytest.approx(0.1)


def test_the_summary_counts_by_phase() -> None:
    records = [record(101.0, (100.0,)), record(103.0, (100.0,)), record(90.0, (100.0,), "prefill", 0.01)]
    decode, prefill, both = summary(records).splitlines()
    assert decode == "decode: 2 runs, median error 2.0%, worst 3.0%, 2 of 2 intervals hold what was measured (100%)"
    assert "median error 10.0%" in prefill and "0 of 1" in prefill
    assert both.startswith("all: 3 runs, median error 3.0%, worst 10.0%, 2 of 3")


def test_the_table_stands_between_its_marks() -> None:
    text = document("before\n<!-- table -->\nstale\n<!-- end -->\nafter\n", [record(101.0, (100.0,))])
    assert text.startswith("before\n<!-- table -->\n- decode: 1 runs") and text.endswith("|\n<!-- end -->\nafter\n")
    assert "| m | 2 | decode | 512 | 101 | 90.9 to 111.1 | 100 | +1.0% |  |" in text
    assert "stale" not in text


def test_the_document_has_a_place_for_it() -> None:
    text = DOCUMENT.read_text()
    assert document(text, [record(101.0, (100.0,))]) != text
