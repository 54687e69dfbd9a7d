"""Output formats, each read back by who it is for, or held against what that one documents."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import junitparser
import pytest
from made_up_rows import NAUGHTY, row, rows, sheet
from prometheus_client.openmetrics import parser

from kbench.report import FORMATS, MAX_BYTES, step_summary
from kbench.report.formats.sheet import names_of


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("of", [[], rows()], ids=["no rows", "rows"])
def test_every_format_takes_every_row(name: str, of: list) -> None:  # type: ignore[type-arg]
    text = FORMATS[name](sheet(of))
    text.encode()
    assert text.endswith("\n") and not any(ord(c) < 32 and c not in "\n\r\t" for c in text)
    assert "\u202e" not in text


def test_junit_is_read_by_a_parser_of_it() -> None:
    (suite,) = junitparser.JUnitXml.fromstring(FORMATS["junit"](sheet()).encode())
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (10, 2, 1, 3)
    kinds = {case.name: [type(result).__name__ for result in case.result] for case in suite}
    assert kinds["linear(n=2,tokens=1) cpu.avx2"] == ["Failure"] and kinds["linear(n=1,tokens=1) cpu.avx2"] == []
    assert kinds["linear(n=5,tokens=1) cpu.avx2"] == ["Error"]
    assert kinds["linear(n=4,tokens=1) cpu.avx2"] == kinds["linear(n=6,tokens=1) cpu.avx2"] == ["Skipped"]
    assert len(kinds) == 10  # no two names are the same
    failure = next(case for case in suite if case.name.startswith("linear(n=2"))
    assert "1.12 times as long [1.11, 1.13], margin 3.0%, 12 pairs" in failure.result[0].message
    properties = {one.get("name"): one.get("value") for one in failure._elem.iter("property")}
    assert properties["ratio"] == "1.12" and properties["a"] == "main"
    assert suite.timestamp == "2026-11-30T12:00:00"
    # A schema's order: properties, the result, output.
    for case in suite:
        order = [child.tag for child in case._elem]
        assert order == sorted(order, key=["properties", "skipped", "error", "failure", "system-out"].index)


def test_two_different_things_do_not_fail_for_not_being_equally_fast() -> None:
    (suite,) = junitparser.JUnitXml.fromstring(FORMATS["junit"](sheet(change=False)).encode())
    assert suite.failures == 0
    assert "❌" not in step_summary(sheet([row("a", "REGRESSED")], change=False))


def test_openmetrics_is_read_by_prometheus() -> None:
    families = {
        family.name: family for family in parser.text_string_to_metric_families(FORMATS["openmetrics"](sheet()))
    }
    assert families["kbench_case_seconds"].unit == "seconds" and families["kbench_change_ratio"].unit == "ratio"
    seconds = {s.labels["case"]: s.value for s in families["kbench_case_seconds"].samples if "number" not in s.labels}
    assert seconds["linear(n=2,tokens=1)"] == 0.001 * 1.12
    assert len(seconds) == 5  # those that were measured, and have no tokens
    (tokens,) = families["kbench_case_tokens_per_second"].samples
    assert tokens.value == pytest.approx(16 / 0.112)
    states = [s for s in families["kbench_verdict"].samples if s.labels["case"] == "linear(n=2,tokens=1)"]
    assert {s.labels["kbench_verdict"] for s in states if s.value == 1} == {"REGRESSED"}


def test_pytest_benchmark_compares_the_file_with_another(tmp_path: Path) -> None:
    for name, factor in (("before", 1.0), ("after", 1.5)):
        changed = [row("linear(n=2)", "SAME", b_seconds=0.001 * factor), row("linear(n=3)", "SAME")]
        (tmp_path / f"0001_{name}.json").write_text(FORMATS["pytest-benchmark"](sheet(changed)))
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "0001_before.json", "0001_after.json",
               "--columns=median,ops", "--sort=name"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "4 tests" in done.stdout and "1.50" in done.stdout and "Failed to load" not in done.stderr


def test_statistics_of_pytest_benchmark_are_those_of_the_samples() -> None:
    data = json.loads(FORMATS["pytest-benchmark"](sheet()))
    one = next(b for b in data["benchmarks"] if b["name"].startswith("linear(n=2"))
    stats = one["stats"]
    assert stats["rounds"] == 12 and len(stats["data"]) == 12
    assert stats["mean"] == pytest.approx(statistics.fmean(stats["data"])) and stats["ops"] * stats[
        "mean"
    ] == pytest.approx(1)
    assert stats["min"] <= stats["ld15iqr"] <= stats["q1"] <= stats["median"] <= stats["q3"] <= stats["hd15iqr"]
    tokens = next(b for b in data["benchmarks"] if b["name"].startswith("decode"))
    assert tokens["stats"]["median"] == pytest.approx(0.112 / 16)


def test_bencher_metric_format() -> None:
    """Its documented shape: names to measures to value, lower_value and upper_value; names of at most 1024."""
    long = row("x" * 5000, "SAME")
    found = json.loads(FORMATS["bencher"](sheet([*rows(), long])))
    assert all(0 < len(name) <= 1024 for name in found) and len(found) == 8
    for measures in found.values():
        ((measure, metric),) = measures.items()
        assert measure in ("latency", "throughput") and set(metric) <= {"value", "lower_value", "upper_value"}
        assert all(isinstance(value, float) and math.isfinite(value) for value in metric.values())
        assert metric.get("lower_value", 0) <= metric["value"] <= metric.get("upper_value", math.inf)
    assert found["linear(n=2,tokens=1) cpu.avx2"]["latency"]["value"] == pytest.approx(1.12e6)  # nanoseconds
    assert found["decode(model=small) cpu.avx2"]["throughput"]["value"] == pytest.approx(16 / 0.112)


def test_github_action_benchmark_in_both_directions() -> None:
    """Its documented shape: a list of name, unit, value, and texts range and extra."""
    smaller, bigger = (json.loads(FORMATS[name](sheet())) for name in ("gha-smaller", "gha-bigger"))
    for entries in (smaller, bigger):
        assert len({entry["name"] for entry in entries}) == len(entries) == 7
        for entry in entries:
            assert set(entry) <= {"name", "unit", "value", "range", "extra"}
            assert isinstance(entry["value"], float) and isinstance(entry["extra"], str)
    for one, other in zip(smaller, bigger, strict=True):
        assert one["name"] == other["name"] and one["value"] * other["value"] == pytest.approx(1.0)
    assert {entry["unit"] for entry in bigger} == {"calls/s", "tokens/s"}


def test_csv_is_read_as_it_was_meant() -> None:
    found = list(csv.DictReader(io.StringIO(FORMATS["csv"](sheet()))))
    assert len(found) == 10 and float(found[1]["ratio"]) == 1.12 and found[5]["ratio"] == ""
    assert [one["outcome"] for one in found[:2]] == ["SAME", "REGRESSED"]
    formula = FORMATS["csv"](sheet([row("=cmd|'/c calc'!A1", "SAME")]))
    assert "\n'=cmd" in formula.replace("\r", "")


def test_names_stay_the_same_from_run_to_run_and_apart_within_one() -> None:
    names = names_of(rows())
    assert len(set(names)) == len(names) and "HEAD" not in "".join(names)
    assert names[0] == "linear(n=1,tokens=1) cpu.avx2" and names[-1] == "linear(n=1,tokens=1) cpu.avx2 #2"


def test_the_summary_tells_the_most_important_first() -> None:
    text = step_summary(sheet())
    head = text.splitlines()[0]
    assert head.startswith("## kbench track check: 1 broken, 2 of 10 cases slower, 1.12× at most")
    order = [text.index(words) for words in ("n=5", "❌ REGRESSED", "n=6", "INCONCLUSIVE", "IMPROVED", "<details>")]
    assert order == sorted(order)
    assert "steal time was seen" in text


def test_nothing_in_a_summary_is_markup_of_a_file() -> None:
    text = step_summary(sheet([row(NAUGHTY, "SAME", reason=NAUGHTY), row(NAUGHTY, status="crashed", reason=NAUGHTY)]))
    lines = [line for line in text.splitlines() if "é" in line]
    assert len(lines) == 2
    for line in lines:
        assert line.replace("\\|", "").count("|") == 8  # as many cells as the head has
        assert "<c>" not in line and "@all" not in line and "](i)" not in line.replace("\\](i)", "")
        assert "\\`f\\`" in line and "\\*g\\*" in line


@pytest.mark.parametrize("most", [600, 5000, MAX_BYTES])
def test_a_summary_never_grows_beyond_what_is_taken(most: int) -> None:
    many = [row(f"linear(n={n},name={'é' * 200})", "REGRESSED" if n < 3000 else "SAME") for n in range(6000)]
    text = step_summary(sheet(many), most)
    assert len(text.encode()) <= most < 1 << 20
    assert "more cases do not fit here" in text and text.count("<details>") == text.count("</details>")
