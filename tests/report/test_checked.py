"""Which of two predictions was held against a run, told in one line; what a plan gains is of the one that chose it."""

from __future__ import annotations

import io
from typing import Any

from made_up_result import bare, made_up
from rich.console import Console

from kbench.report import html_page, print_tune_report
from kbench.report.checked import check_line, planned
from kbench.report.gains import gain_rows


def checked(**check: str) -> dict[str, Any]:
    fields = made_up()
    rates = {"decode_tokens_per_s": 28.0, "prefill_tokens_per_s": 108.0}
    said = {"prediction": "in turns", "run": "now", "created": "2026-01-02T03:04:05+00:00", **check}
    return {**fields, "planned": {**fields["predicted"], **rates}, "check": said}


def test_one_line_says_which_prediction_was_checked() -> None:
    line = "predicted in turns with the run; prices that said 28 and 108 tokens/s chose the placement"
    assert check_line(checked()) == line
    assert check_line(checked(run="stored")) == f"{line}; run of 2026-01-02T03:04, --remeasure repeats it"
    assert "could not be measured again" in check_line(checked(prediction="of the plan"))
    assert check_line(bare()) == check_line(made_up()) == ""


def test_it_stands_where_people_look() -> None:
    terminal = io.StringIO()
    fields = {"packing": {"seconds": None}, **checked()}
    print_tune_report(Console(file=terminal, width=100), {**fields, "gpus": {}})
    assert "predicted in turns with the run" in " ".join(terminal.getvalue().split())
    assert "Predicted in turns with the run" in html_page(checked())


def test_gains_are_of_what_chose_the_plan() -> None:
    assert planned(made_up()) == made_up()["predicted"]
    assert gain_rows(checked())[0][1] == "+1.4 tokens/s (+5.0 %)"
