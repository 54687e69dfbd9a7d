"""`kbench track history`, `import` and `mark` as a user meets them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import junitparser
import numpy as np
import pytest
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import KbenchError
from kbench.measure import host
from kbench.results import Record, Store

DATA = Path(__file__).parents[1] / "results" / "data"


def run(*arguments: str) -> Any:
    """The output, or the error."""
    result = CliRunner().invoke(build_app(), ["track", *arguments])
    if isinstance(result.exception, KbenchError):
        return result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits of a repository that one works in, with a step of 15 % at the 26th of 40."""
    monkeypatch.setenv("KBENCH_RESULTS", str(tmp_path / "results"))
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    script = "".join(
        f"commit refs/heads/main\ncommitter n <e@example.org> {1_700_000_000 + i} +0000\ndata 1\n{i % 10}\n"
        for i in range(40)
    )
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    subprocess.run(["git", "fast-import", "--quiet"], input=script, text=True, check=True)
    found = subprocess.run(
        ["git", "rev-list", "--reverse", "main"], check=True, capture_output=True, text=True
    ).stdout.split()
    store = Store()
    rng = np.random.default_rng(3)
    for name, ratio in (("linear(n=8,threads=2)", 1.15), ("linear(n=9,threads=2)", 1.0)):
        values = 1e-3 * np.exp(0.01 * rng.normal(size=40)) * np.where(np.arange(40) >= 25, ratio, 1.0)
        store.append(records(name, found, values.tolist()), suite="track")
    return found


def records(key: str, commits: Sequence[str], values: Sequence[float]) -> list[Record]:
    return [
        Record(key, "linear", "cpu.avx2", {"n": 8}, 2, samples=(v,), median=v, host_id=host().host_id, commit=c,
               created=f"2026-01-01T00:{i:02}:00+00:00")
        for i, (c, v) in enumerate(zip(commits, values, strict=True))
    ]  # fmt: skip


def test_the_table_names_the_commit_and_the_page_shows_it(commits: list[str], tmp_path: Path) -> None:
    text = run("history", "-o", str(tmp_path / "page.html"))
    assert "REGRESSED" in text and commits[25][:9] in text and "still slower" in text
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and commits[25][:9] in page and "linear(n=9,threads=2)" in page


def test_json_and_exit_codes(commits: list[str]) -> None:
    fields = json.loads(run("history", "--json"))
    assert next(iter(fields)) == "schema" and fields["schema"] == "kbench.track.history/1"
    assert fields["branch"] == "main" and fields["counts"] == {"REGRESSED": 1, "SAME": 1}
    assert fields["cases"][0]["steps"][0]["commit"] == commits[25]
    error = run("history", "--fail-on-regression")
    assert error.exit_code == 1 and commits[25][:12] in error.message and "linear(n=8" in error.message
    assert json.loads(run("history", "--json", "--filter", "n=9"))["counts"] == {"SAME": 1}
    assert json.loads(run("history", "--json", "--last", "12"))["counts"] == {"SAME": 2}
    assert json.loads(run("history", "--json", "--min-magnitude", "20"))["counts"] == {"SAME": 2}


def test_a_mark_closes_a_regression(commits: list[str], tmp_path: Path) -> None:
    run("mark", "linear(n=8*", commits[25][:9], "accepted", "--why", "checks its bounds now")
    assert "checks its bounds now" in (tmp_path / "results" / "marks.yaml").read_text()
    fields = json.loads(run("history", "--json", "--fail-on-regression"))
    assert fields["cases"][0]["steps"][0]["why"] == "checks its bounds now" and "REGRESSED" not in fields["counts"]
    error = run("mark", "a", commits[0], "acepted")
    assert error.exit_code == 2 and "did you mean accepted?" in error.message


def test_formats_go_where_they_are_told(commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("what was there\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    run("history", "--format", "junit", "-o", str(tmp_path / "a.xml"), "--format", "markdown", "-o", str(summary))
    (suite,) = junitparser.JUnitXml.fromfile(str(tmp_path / "a.xml"))
    assert (suite.tests, suite.failures) == (2, 1)
    assert summary.read_text().startswith("what was there\n## kbench track history: 1 of 2 cases slower")
    assert json.loads(run("history", "--format", "bencher"))["linear(n=8,threads=2) cpu.avx2"]["latency"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["history", "--branch", "no-such"], "no branch or commit 'no-such'"),
        (["history", "--results", "no-such"], "no such folder"),
        (["history", "--filter", "no-such"], "no records"),
        (["history", "--min-magnitude", "0"], "--min-magnitude"),
        (["history", "--format", "junitt"], "did you mean junit?"),
        (["history", "--format", "junit", "--format", "csv"], "2 formats and 0 files"),
        (["history", "-o", "x.what"], "which format?"),
        (["history", "-o", ".", "--format", "csv"], "a folder"),
        (["import", "no-such.json"], "cannot be read"),
    ],
)
def test_mistakes_are_told_in_one_message(commits: list[str], arguments: list[str], words: str) -> None:
    error = run(*arguments)
    assert isinstance(error, KbenchError) and error.exit_code == 2 and words in error.message


def test_other_tools_results_come_in_once(commits: list[str]) -> None:
    file = str(DATA / "pytest_benchmark_json.json")
    assert "2 records of host import-" in run("import", file)
    assert "0 records" in run("import", file) and "2 were there already" in run("import", file)
    fields = json.loads(run("import", file, "--host", "this", "--json"))
    assert fields["files"][0]["hosts"] == [host().host_id] and fields["files"][0]["n_new"] == 2


def test_without_a_repository_time_orders(commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fields = json.loads(run("history", "--json"))
    assert fields["branch"] == "" and not fields["by_commit"] and fields["counts"]["REGRESSED"] == 1
    assert "ordered by time" in fields["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--marks", "none.yaml"), "--marks none.yaml: no such file"),
        (("--repo", "nowhere"), "--repo nowhere: no such folder"),
        (("--json", "--format", "csv"), "--json and --format csv on stdout"),
    ],
)
def test_mistakes_of_a_history(commits: list[str], arguments: tuple[str, ...], words: str) -> None:
    assert words in run("history", *arguments).message


def test_a_branch_needs_a_repository(commits: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    assert "not in a git repository" in run("history", "--repo", str(folder), "--branch", "main").message
    assert "linear(n=8" in run("history", "--repo", str(folder))  # by time


def test_a_pipe_gets_no_escapes_where_colours_are_forced(commits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in run("history")
