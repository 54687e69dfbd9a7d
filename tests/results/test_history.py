"""Histories: which records make a series, in which order, and what is left out."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kbench.core import UserError
from kbench.results import Mark, Record, branch_commits, histories, judged_histories

A, B, C = "a" * 40, "b" * 40, "c" * 40


def record(commit: str, value: float, created: str = "2026-01-01T00:00:00+00:00", **more: object) -> Record:
    one = Record(
        "linear(n=8,threads=2)", "linear", "torch", {"n": 8}, 2, samples=(value,), median=value, host_id="h",
        commit=commit, created=created,
    )  # fmt: skip
    return replace(one, **more)  # type: ignore[arg-type]


def test_points_follow_the_branch_and_runs_of_a_commit_are_one() -> None:
    records = [record(C, 3.0), record(A, 1.0), record(B, 2.0), record(A, 5.0), record(A[:9], 3.0)]
    found = histories(records, [A, B, C])
    (series,) = found.series
    assert found.by_commit and not found.n_left_out
    assert [(p.commit[0], p.value, p.low, p.high, p.n_runs) for p in series.points] == [
        ("a", 3.0, 1.0, 5.0, 3), ("b", 2.0, 2.0, 2.0, 1), ("c", 3.0, 3.0, 3.0, 1),
    ]  # fmt: skip


def test_other_branches_and_changed_checkouts_are_left_out_and_counted() -> None:
    found = histories([record(A, 1.0), record(B, 2.0), record(f"{A}-dirty", 9.0), record("v0.1.0", 9.0)], [A])
    assert len(found.series[0].points) == 1 and found.n_left_out == 3


def test_time_orders_where_no_commit_is_known() -> None:
    records = [record("v2", 2.0, "2026-02-01T00:00:00+00:00"), record("v1", 1.0, "2026-01-01T00:00:00+00:00")]
    found = histories(records, None)
    assert not found.by_commit and [point.value for point in found.series[0].points] == [1.0, 2.0]


@pytest.mark.parametrize(
    "more", [{"host_id": "i"}, {"implementation": "x"}, {"unit": "tokens/s"}, {"device": "cuda:0"}, {"key": "k"},
             {"extra": {"block": {"tile": 4}}}],
)  # fmt: skip
def test_what_differs_is_another_series(more: dict[str, object]) -> None:
    assert len(histories([record(A, 1.0), record(B, 2.0, **more)], [A, B]).series) == 2


def test_an_operation_with_another_meaning_begins_anew() -> None:
    old = record(A, 1.0, "2026-01-01T00:00:00+00:00", op_spec_hash="x")
    new = record(B, 9.0, "2026-01-02T00:00:00+00:00", op_spec_hash="y")
    (series,) = histories([old, new], [A, B]).series
    assert [point.value for point in series.points] == [9.0]


@pytest.mark.parametrize(
    "more", [{"status": "wrong", "median": None}, {"source": "modelled"}, {"op": "compare"}, {"median": 0.0}]
)
def test_what_is_no_measurement_is_no_point(more: dict[str, object]) -> None:
    assert histories([record(A, 1.0, **more)], [A]).series == ()


def test_commits_of_a_branch(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        about = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *about, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    assert branch_commits(tmp_path / "none", "main") is None
    git("init", "-q", "-b", "main")
    wanted = []
    for number in range(3):
        git("commit", "-q", "--allow-empty", "-m", f"{number}")
        wanted.append(git("rev-parse", "HEAD"))
    git("checkout", "-q", "-b", "side")
    git("commit", "-q", "--allow-empty", "-m", "side")
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    wanted.append(git("rev-parse", "HEAD"))
    assert branch_commits(tmp_path, "main") == wanted  # a merge is one commit of main
    for name in ("no-such", "--output=x"):
        with pytest.raises(UserError, match="accepted: main, side"):
            branch_commits(tmp_path, name)
    git("clone", "-q", "--depth=1", f"file://{tmp_path}", str(tmp_path / "shallow"))
    with pytest.raises(UserError, match="fetch-depth: 0"):
        branch_commits(tmp_path / "shallow", "main")


COMMITS = [f"{number:040x}" for number in range(1, 41)]


def stepped(ratio: float = 1.2, at: int = 25) -> list[Record]:
    return [record(commit, (1.0 + 0.002 * (i % 3)) * (ratio if i >= at else 1.0)) for i, commit in enumerate(COMMITS)]


def test_a_step_is_told_with_its_commit_and_marks_close_it() -> None:
    found = histories(stepped(), COMMITS)
    fields = judged_histories(found, (), COMMITS)
    (case,) = fields["cases"]
    assert case["verdict"] == "REGRESSED" and case["left"] == pytest.approx(1.2, rel=0.01)
    assert case["steps"][0]["commit"] == COMMITS[25] and case["steps"][0]["after_commit"] == COMMITS[24]
    mark = Mark("linear*", COMMITS[25], "accepted", "wanted")
    (case,) = judged_histories(found, [mark], COMMITS)["cases"]
    assert case["verdict"] == "SAME" and case["steps"][0]["why"] == "wanted"
    for other in (Mark("attention*", COMMITS[25], "accepted"), Mark("linear*", COMMITS[25], "accepted", host="j")):
        fields = judged_histories(found, [other], COMMITS)
        assert fields["cases"][0]["verdict"] == "REGRESSED" and "matches nothing" in fields["notes"][0]


def test_a_marked_commit_need_not_have_been_measured() -> None:
    every_second = [one for i, one in enumerate(stepped()) if i % 2 == 0]
    found = histories(every_second, COMMITS)
    mark = Mark("*", COMMITS[25], "environment")  # 24 and 26 were measured
    assert judged_histories(found, [mark], COMMITS)["cases"][0]["steps"][0]["state"] == "environment"
    fixed = Mark("*", COMMITS[39], "fixed")  # after the last one that was measured
    assert judged_histories(found, [fixed], COMMITS)["cases"][0]["verdict"] == "SAME"


def test_a_step_within_the_noise_of_the_machine_does_not_count() -> None:
    class Floor:
        def margin(self, case: str, implementation: str) -> float:
            return 0.1

    fields = judged_histories(histories(stepped(1.2), COMMITS), (), COMMITS, floors={"h": Floor()})
    assert fields["cases"][0]["verdict"] == "SAME"


def test_the_largest_regression_comes_first() -> None:
    small = [replace(one, key="small(n=1)") for one in stepped(1.1)]
    same = [replace(one, key="a(n=1)") for one in stepped(1.0)]
    fields = judged_histories(histories([*same, *small, *stepped(1.3)], COMMITS), (), COMMITS)
    assert [case["case"] for case in fields["cases"]] == ["linear(n=8,threads=2)", "small(n=1)", "a(n=1)"]
    assert fields["counts"] == {"REGRESSED": 2, "SAME": 1}


@pytest.mark.parametrize("more", [{"extra": {"in_place": 3}}, {"median": 5e-324}, {"median": 1e308}])
def test_what_is_no_time_of_the_case_by_itself_is_no_point(more: dict[str, object]) -> None:
    found = histories([record(A, 1.0), record(B, 2.0, **more)], [A, B])
    assert [point.commit for point in found.series[0].points] == [A]
    assert judged_histories(found)["cases"][0]["verdict"] == "INCONCLUSIVE"
