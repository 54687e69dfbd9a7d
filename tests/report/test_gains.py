"""Rules of thumb beside a plan, what a little more memory would bring, and why modules are where they are."""

from __future__ import annotations

import io
from typing import Any

import pytest
from made_up_result import bare, made_up
from rich.console import Console

from kbench.report import html_page, print_tune_report
from kbench.report.gains import gain_rows, thumb_rows, thumb_warning
from kbench.report.why import why_rows
from kbench.results import rules_of_thumb


def four_threads(decode: float) -> dict[str, Any]:
    """A plan with two threads, on a machine with four: all of them take ``decode`` times as long in decode."""
    fields = made_up()
    for row in fields["ops"]:
        factor = decode if row["phase"] == "decode" else 0.9
        row["seconds_by_threads"]["4"] = factor * row["seconds"]
    return fields


def test_a_rule_of_thumb_is_told_with_what_it_costs() -> None:
    rows = {row["name"]: row for row in rules_of_thumb(four_threads(1.25))}
    assert rows["whole layers"]["ratio"] == 1.5 and rows["n-cpu-moe"]["ratio"] == 1.0
    assert rows["all threads in decode"]["ratio"] == pytest.approx(1.25)
    assert rows["all threads in prefill"]["ratio"] == pytest.approx(0.9)
    assert [row[-1] for row in thumb_rows(four_threads(1.25))] == ["+50 %", "the same", "+25 %", "-10 %"]
    told = "whole layers (+50 %), all threads in decode (+25 %)"
    assert thumb_warning(four_threads(1.25)) == f"rules of thumb that would take longer here: {told}"
    assert thumb_warning({**made_up(), "presets": {"n-cpu-moe": 20.0}}) == ""


def test_who_uses_all_threads_is_not_told_to() -> None:
    names = [row["name"] for row in rules_of_thumb(made_up())]
    assert names == ["whole layers", "n-cpu-moe"]
    assert rules_of_thumb(bare()) == [] and rules_of_thumb({**made_up(), "ops": [], "presets": {}}) == []


def test_only_what_runs_on_the_cpu_counts_for_threads() -> None:
    """On the CPU decode has 2 calls of attention of 0.9 ms and 5 of experts of 2 ms; transfers are none of it."""
    fields = four_threads(1.0)
    for row in fields["ops"]:
        if row["unit"] == "routed experts" and row["phase"] == "decode" and row["op"] != "transfer":
            row["seconds_by_threads"]["4"] = 3e-3
    (decode,) = [row for row in rules_of_thumb(fields) if row["name"] == "all threads in decode"]
    assert decode["ratio"] == pytest.approx((2 * 0.9 + 5 * 3) / (2 * 0.9 + 5 * 2))


def test_what_more_memory_would_bring() -> None:
    assert gain_rows(made_up()) == [
        ["1 GiB more on cuda:0", "+1.4 tokens/s (+10.0 %)", "−0.54 tokens/s (-1.0 %)"],
        ["1 GiB more on cpu", "nothing", "nothing"],
    ]


def test_the_page_has_both() -> None:
    text = " ".join(html_page(four_threads(1.25)).split())
    for words in (
        '<a href="#gains">What a little more would bring</a>', '<a href="#thumbs">Rules of thumb</a>',
        "Rules of thumb that would take longer here: whole layers (+50 %), all threads in decode (+25 %).",
        "+1.4 tokens/s (+10.0 %)",
    ):  # fmt: skip
        assert words in text, words
    assert "Rules of thumb" not in html_page(bare())


def test_every_group_of_modules_has_its_reason() -> None:
    header, rows = why_rows(made_up())
    told = {row[0]: row[2] for row in rows}
    assert header[2] == "because" and all(told.values())
    assert told["attention"] == "what fits goes to the faster device, layer by layer"
    assert told["routed experts"] == "no kernel for routed experts"
    assert told["the output matrix"] == "writing is 3 times as fast here (reading: 3 times)"

    def reason(decode: float, prefill: float) -> str:
        fields = made_up()
        for row in fields["ops"]:
            if row["op"] == "linear":
                times = decode if row["phase"] == "decode" else prefill
                row["alternatives"] = [{"device": "cpu", "seconds": times * row["seconds"]}]
        return {row[0]: row[2] for row in why_rows(fields)[1]}["the output matrix"]

    assert reason(0.5, 0.5).startswith("2 times as fast elsewhere, but memory")
    assert reason(0.5, 4) == "reading is 4 times as fast here, though writing is 2 times as fast elsewhere"
    assert reason(1, 1).startswith("as fast as elsewhere")


def test_the_terminal_says_why_what_if_and_which_rules_of_thumb() -> None:
    fields = four_threads(1.25)
    fields |= {"gpus": {"cuda:0": fields["gpu"]}, "packing": {"seconds": 0.0, "stored_bytes": 0, "packed_bytes": 0}}
    out = io.StringIO()
    print_tune_report(Console(file=out, width=100), fields)
    text = out.getvalue()
    lines = text.splitlines()
    assert max(map(len, lines[: lines.index(next(line for line in lines if line.startswith("placement ")))])) <= 100
    for words in (
        "Why", "routed experts", "no kernel for routed experts", "What if the GPU had", "4 GiB (this plan)", "48 GiB",
        "+29 %", "Rules of thumb, beside this plan", "+50 %",
        "1 GiB more on cuda:0: writing +1.4 tokens/s (+10.0 %), reading −0.54 tokens/s (-1.0 %)",
        "rules of thumb that would take longer here: whole layers (+50 %), all threads in decode (+25 %)",
    ):  # fmt: skip
        assert words in text, words
