"""Ladders: what a suite file says, what is measured and judged, what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import Problem, UserError
from kbench.kernels import best, implementation, registry
from kbench.measure import Interval, Pairs
from kbench.report import print_ladder
from kbench.results import Store
from kbench.suites import Claim, expand, load_suite, parse_suite, run_ladder, select_rungs, threads_of

GOOD = """suite: 1
name: steps
threads: 1
ladder:
- step: ladder.naive
  problem: linear(quant=F32,n=8,k=64,tokens=1)
- step: ladder.reordered
  against: ladder.naive
  claim: {at_least: 3, source: a book}
- step: ladder.fused
  problem: linear(quant=Q8_0,n=8,k=64,tokens=1)
  against: ladder.reordered
- step: auto
  against: ladder.fused
  claim: {about: 1.4, source: a talk}
"""


def made_up(a_over_b: float) -> Callable[..., Pairs]:
    def pairs(a: Callable[[], object], b: Callable[[], object]) -> Pairs:
        a(), b()
        return Pairs((0.01 * a_over_b,) * 12, (0.01,) * 12)

    return pairs


def climb(text: str, ratio: float = 2.0, store: Store | None = None) -> list[Any]:
    suite = parse_suite(text)
    return run_ladder(suite.ladder, threads_of(suite), store, pairs=made_up(ratio), suite=suite.name)


def test_what_is_read() -> None:
    suite = parse_suite(GOOD)
    q8_0 = Problem.parse("linear(quant=Q8_0,n=8,k=64,tokens=1)")
    assert [rung.step for rung in suite.ladder] == ["ladder.naive", "ladder.reordered", "ladder.fused", "auto"]
    # A problem holds until the next one; a partner keeps its own.
    assert suite.ladder[1].problem.text("quant") == "F32" and suite.ladder[3].problem == q8_0
    assert suite.ladder[2].against == ("ladder.reordered", suite.ladder[1].problem)
    assert suite.ladder[3].claim == Claim(1.4, False, "a talk")
    assert [cell.implementation for cell in expand(suite)][-2:] == ["ladder.fused", best(q8_0)]
    assert [rung.step for rung in select_rungs(suite.ladder, "reorder")] == ["ladder.reordered"]
    assert len(select_rungs(suite.ladder, "quant=Q8_0")) == 2
    with pytest.raises(UserError, match="matches no rung"):
        select_rungs(suite.ladder, "nothing")


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("against: ladder.naive", "against: ladder.naiv", 7, "did you mean ladder.naive"),
        ("against: ladder.naive", "agianst: ladder.naive", 8, "did you mean against"),
        ("{at_least: 3, source: a book}", "{at_least: 3}", 9, "incomplete claim"),
        ("{at_least: 3, source: a book}", "{at_least: 3, about: 3, source: a book}", 9, "incomplete claim"),
        ("{at_least: 3, source: a book}", "{at_least: -3, source: a book}", 9, "at_least is -3"),
        ("{at_least: 3, source: a book}", "{atleast: 3, source: a book}", 9, "did you mean at_least"),
        ("  against: ladder.naive\n", "", 8, "a claim without against"),
        ("quant=F32,n=8", "quant=F32,n=0", 6, "n is 0"),
        ("quant=F32,n=8", "quant=F31,n=8", 6, "unknown quant type"),
        ("problem: linear(quant=F32,n=8,k=64,tokens=1)", "problem: linear", 6, "is no problem"),
        (
            "- step: ladder.naive\n  problem: linear(quant=F32,n=8,k=64,tokens=1)",
            "- step: ladder.naive",
            5,
            "no problem",
        ),
        ("- step: auto", "- step: [auto]", 13, "step is ['auto']"),
        ("threads: 1", "threads: [1, 2]", 3, "2 thread counts"),
        ("threads: 1", "ops: {}", 3, "ops beside a ladder"),
    ],
)
def test_mistakes_are_located(old: str, new: str, line: int, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        parse_suite(GOOD.replace(old, new, 1), "s.yaml")
    assert caught.value.where == f"s.yaml:{line}"
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("claim", "low", "high", "verdict"),
    [
        (Claim(3, True, ""), 3.1, 9, "holds"),
        (Claim(3, True, ""), 2.9, 9, "not distinguishable"),
        (Claim(3, True, ""), 1.0, 2.9, "does not hold here: less"),
        (Claim(1.05, False, ""), 1.03, 1.07, "holds"),
        (Claim(1.05, False, ""), 1.02, 1.06, "not distinguishable"),
        (Claim(1.05, False, ""), 0.9, 1.02, "does not hold here: less"),
        (Claim(1.05, False, ""), 1.2, 1.3, "does not hold here: more"),
        (Claim(0.8, False, ""), 0.75, 0.85, "holds"),
    ],
)
def test_verdicts(claim: Claim, low: float, high: float, verdict: str) -> None:
    assert claim.verdict(Interval(low, high, 0.95)) == verdict


def test_gains_are_stored_with_their_verdicts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second, third, last = climb(GOOD, 2.0, store)
    assert "gain" not in first.extra["rung"] and len(first.samples) >= 3
    rung = second.extra["rung"]
    assert rung["gain"] == pytest.approx(2) and rung["verdict"] == "does not hold here: less"
    assert rung["against"] == "ladder.naive" and len(rung["ratios"]) == 12
    assert second.median == pytest.approx(0.01)
    assert "verdict" not in third.extra["rung"]
    # A product kernel runs many calls in a program; a ladder's step one: the gain is that of one call.
    assert last.implementation == best(last.core_problem())
    assert last.extra["rung"]["gain"] == pytest.approx(2 * last.extra["steps"])
    assert last.median == pytest.approx(0.01 / last.extra["steps"])
    kept = store.find(op="linear")
    assert [record.extra["rung"]["step"] for record in kept] == [rung.step for rung in parse_suite(GOOD).ladder]
    assert all(record.status == "ok" for record in kept)


def test_who_cannot_run_says_why_and_so_does_the_partner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation("ladder.fused"), "_missing", "the CPU lacks luck")
    _, _, fused, auto = climb(GOOD)
    assert (fused.status, fused.reason) == ("unsupported", "the CPU lacks luck")
    assert auto.status == "skipped" and "the CPU lacks luck" in auto.reason
    assert not fused.samples and not auto.samples
    unknown = climb(GOOD.replace("step: auto", "step: ladder.levitated"))[-1]
    assert unknown.status == "unsupported" and "ladder.levitated" in unknown.reason
    big = climb(GOOD.replace("n=8,k=64", "n=100000000,k=6400"))[0]
    assert big.status == "unsupported" and "MiB" in big.reason


def test_a_wrong_step_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    step = implementation("ladder.reordered")
    right = type(step).run

    def wrong(self: Any, *arguments: Any) -> Any:
        (y,) = right(self, *arguments)
        return [y + 1 if self is step else y]

    monkeypatch.setattr(type(step), "run", wrong)
    _, reordered, fused, _ = climb(GOOD)
    assert reordered.status == "wrong" and not reordered.samples
    assert fused.status == "wrong"  # its partner is no measure


def test_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbench.core import InvalidEnvironment

    def missing() -> Any:
        raise InvalidEnvironment("the native extension is not built")

    monkeypatch.setattr(registry, "ladder_implementations", missing)
    assert {record.status for record in climb(GOOD)[:2]} == {"unsupported"}


def test_the_shipped_ladder_names_steps_that_exist() -> None:
    suite = load_suite("matmul-ladder")
    for rung in suite.ladder:
        if rung.step != "auto":
            assert implementation(rung.step).supports(rung.problem).ok, str(rung)
    claims = {rung.claim.ratio for rung in suite.ladder if rung.claim is not None}
    assert {3, 1.05, 1.15, 1.4, 10} <= claims
    used = {rung.step for rung in suite.ladder}
    assert {item.name for item in registry.ladder_implementations()} <= used


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBENCH_RESULTS", str(tmp_path / "results"))
    file = tmp_path / "steps.yaml"
    file.write_text(GOOD)
    listed = CliRunner().invoke(build_app(), ["bench", str(file), "--list"], catch_exceptions=False)
    assert listed.stdout.splitlines()[0] == "ladder.naive linear(quant=F32,n=8,k=64,tokens=1)"
    found = CliRunner().invoke(build_app(), ["bench", str(file), "--json"], catch_exceptions=False)
    data = json.loads(found.stdout)
    assert data["schema"] == "kbench.bench/1" and [rung["status"] for rung in data["rungs"]] == ["ok"] * 4
    second = data["rungs"][1]
    assert second["n_pairs"] >= 10 and second["gain_low"] <= second["gain"] <= second["gain_high"]
    assert second["claim"] == {"kind": "at_least", "ratio": 3, "source": "a book"} and second["verdict"]
    # What was stored is printed as the verb prints it.
    records = [record for record in Store(tmp_path / "results").find() if record.implementation == "ladder.reordered"]
    console = Console(width=140, no_color=True, record=True)
    print_ladder(console, records, str)
    table = console.export_text()
    assert "\nreordered" in table and "≥ 3× [1]" in table and "[1] a book" in table and "\nnaive" not in table
