"""Recorded runs against each other: what is compared, and what is refused with the field that differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from kbench.core import Problem, UserError
from kbench.measure import Plan
from kbench.results import (
    Record,
    blocks_of,
    by_importance,
    compare_recorded,
    deviation_between_runs,
    noise_floor,
    one_host,
)

LINEAR = Problem.make("linear", quant="Q4_K", n=1536, k=5120, tokens=1)
PLAN = Plan()


def blocks(seconds: Sequence[float], run: str = "r", threads: int = 2, **changes: Any) -> list[Record]:
    canary = changes.pop("canary", {"arithmetic": 0.001, "memory": 0.01})
    found = []
    for index, value in enumerate(seconds):
        extra = {"track": {"run": run, "index": index, "canary": canary}, "block": {}, **changes.pop("extra", {})}
        made = Record.make(LINEAR, "cpu.avx2", threads=threads, result=(value,), op_spec_hash="h", extra=extra)
        found.append(dataclasses.replace(made, **changes))
    return found


def row(a: list[Record], b: list[Record], **options: Any) -> Any:
    rows = compare_recorded(blocks_of(a), blocks_of(b), PLAN, ("A", "B"), **options)
    assert len(rows) == 1
    return rows[0]


A = blocks([0.0100, 0.0101, 0.0102, 0.0099, 0.0100])


def test_a_slower_run_is_found_and_its_row_says_that_there_were_no_pairs() -> None:
    found = row(A, blocks([0.0130, 0.0131, 0.0129, 0.0130, 0.0132]))
    assert (found.verdict, found.n_pairs, found.n_blocks) == ("REGRESSED", 0, (5, 5))
    assert found.ratio == pytest.approx(1.3, rel=0.01) and found.low < 1.3 < found.high
    assert found.implementation == "cpu.avx2" and found.as_dict()["n_blocks"] == [5, 5]


def test_the_margin_of_a_case_is_its_noise_floor() -> None:
    slower = blocks([0.0130] * 5)
    (identity,) = blocks_of(A)
    found = row(A, slower, margins={identity: 0.5}, between=0.01)
    assert found.verdict == "SAME" and found.margin == 0.5 and found.not_worse


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host_id": "0123456789ab"}, "host_id: "),
        ({"op_spec_hash": "i"}, "op_spec_hash: h and i"),
        ({"device": "cuda:0"}, "device: cpu and cuda:0"),
        ({"source": "modelled"}, "source: measured and modelled"),
        ({"threads": 4}, "threads: 4 and 2"),
    ],
)
def test_unlike_things_are_refused_by_field(changes: dict[str, Any], words: str) -> None:
    rows = compare_recorded(blocks_of(A), blocks_of(blocks([0.01] * 5, **changes)), PLAN, ("A", "B"))
    assert {each.status for each in rows} == {"unlike"} and any(words in each.reason for each in rows)
    assert all(each.verdict == "" and each.ratio is None for each in rows)


def test_a_cold_and_a_warm_run_are_unlike() -> None:
    a, b = ([dataclasses.replace(r, extra={**r.extra, "cold": cold}) for r in A] for cold in (True, False))
    assert row(a, b).reason == "cold: True and False"


def test_a_machine_that_became_slower_says_nothing_about_the_code() -> None:
    found = row(A, blocks([0.0130] * 5, canary={"arithmetic": 0.0013, "memory": 0.01}))
    assert found.status == "disturbed" and "arithmetic became 30% slower" in found.reason


def test_cases_of_one_side_are_new_or_gone_and_failures_are_no_blocks() -> None:
    other = dataclasses.replace(blocks([0.01])[0], key="rope()", op="rope", problem={})
    failed = dataclasses.replace(other, key="add()", status="wrong", samples=(), median=None)
    rows = compare_recorded(blocks_of(A), blocks_of([other, failed]), PLAN, ("A", "B"))
    assert [(each.status, each.reason) for each in rows] == [
        ("gone", "B does not have it"),
        ("new", "A does not have it"),
    ]


def test_rates_count_the_other_way_round() -> None:
    a, b = (blocks([rate] * 5, unit="tokens/s", direction="higher") for rate in (100.0, 70.0))
    assert row(a, b).verdict == "REGRESSED"


def test_what_happened_first_is_shown_first() -> None:
    rows = [row(A, blocks([value] * 5)) for value in (0.01, 0.015, 0.02)]
    broken = dataclasses.replace(rows[0], status="wrong", verdict="", reason="1 instead of 2")
    assert [each.outcome for each in by_importance([*rows, broken])] == [
        "wrong",
        "REGRESSED",
        "REGRESSED",
        "INCONCLUSIVE",
    ]
    assert by_importance(rows)[0].ratio == pytest.approx(2, rel=0.02)


def test_the_deviation_from_run_to_run_is_this_hosts_own_when_it_is_known() -> None:
    runs = [blocks([0.01 * (1 + 0.01 * i)] * 3, run=f"r{i}") for i in range(6)]
    assert deviation_between_runs([each for run in runs for each in run]) == pytest.approx(0.018, abs=0.001)
    assert deviation_between_runs(runs[0]) is None
    elsewhere = [dataclasses.replace(each, commit=f"{i}") for i, run in enumerate(runs) for each in run]
    assert deviation_between_runs(elsewhere) is None  # of other commits: the code may differ


def test_one_file_is_of_one_host() -> None:
    with pytest.raises(UserError, match="records of 2 hosts"):
        both = [*A, *[dataclasses.replace(each, host_id="x", key="y") for each in A]]
        one_host(blocks_of(both), "a.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl: no measured times"):
        one_host({}, "a.jsonl")


def aa(ratio: float, verdict: str = "SAME", case: str = "c") -> Record:
    extra = {"compare": {"aa": True, "ratio": ratio, "verdict": verdict}}
    return Record.make(("compare", {"case": case}), "torch", result=(1.0,), unit="ratio", extra=extra)


def test_the_noise_floor_is_what_95_percent_of_identical_things_stay_below() -> None:
    records = [aa(1 + 0.001 * i) for i in range(20)] + [aa(1 / 1.5, "IMPROVED", "rare")]
    floor = noise_floor([*records, *A])
    assert (floor.n, floor.n_calls) == (21, 1) and floor.false_alarm_rate == pytest.approx(1 / 21)
    assert floor.margin("c", "torch") == pytest.approx(0.018) and floor.margin("other", "torch") == pytest.approx(0.019)
    low, high = floor.rate_interval()
    assert 0 < low < 1 / 21 < high < 0.3
    assert noise_floor(A).margin("c", "torch") == 0.0 and noise_floor([]).rate_interval() == (0.0, 1.0)


def test_what_was_timed_among_other_calls_is_no_block() -> None:
    in_place = blocks([0.02] * 5, extra={"in_place": 4, "run_tokens": 1})
    assert blocks_of([*A, *in_place[:1]]) == blocks_of(A)


def test_a_commit_that_was_recorded_many_times_is_compared_by_its_newest_blocks() -> None:
    many = [block for run in range(25) for block in blocks([0.02] * 5 if run < 5 else [0.01] * 5, run=f"r{run}")]
    found = row(many, A)
    assert found.verdict in ("SAME", "INCONCLUSIVE") and found.n_blocks == (125, 5)
    assert found.ratio == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("ratio", [1e-320, 10**400])
def test_a_ratio_that_nothing_has_to_itself_is_no_noise(ratio: float) -> None:
    aa = Record("c", "compare", "x", extra={"compare": {"aa": True, "ratio": ratio, "verdict": "SAME"}})
    assert noise_floor([aa]).n == 0
