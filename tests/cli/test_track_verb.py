"""`kbench track` and `kbench compare --rev` end to end: a repository of made-up kernels, real worktrees, environments
and processes. What is made up is the time that a kernel takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_repository import commit, git
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import KbenchError
from kbench.measure import Canary, host
from kbench.results import Store, track_fields

ARGUMENTS = ("--suite", "smoke", "--filter", "linear(quant=Q4_K")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    commit(path, "ancient", side=False)
    commit(path, "broken", raises="kernel.cpp:3: error: no such register")
    commit(path, "base")
    commit(path, "slower", seconds=0.011)
    commit(path, "redefined", definition="another")
    commit(path, "reverted")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, repository: Path, cache: Path) -> None:
    monkeypatch.setenv("KBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("KBENCH_CACHE", str(cache))
    monkeypatch.chdir(repository)
    # The machine that runs the tests may be as busy as it likes.
    monkeypatch.setattr("kbench.measure.Guard.bad", lambda self: ())
    monkeypatch.setattr("kbench.suites.record_blocks.canary", lambda: Canary(0.001, 0.01))


def run(*arguments: str) -> tuple[int, str]:
    """Exit code, with the output or the message."""
    result = CliRunner().invoke(build_app(), list(arguments))
    output = result.stdout if "--json" in arguments else result.output
    if isinstance(result.exception, KbenchError):
        return result.exception.exit_code, f"{output}{result.exception.message}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, output


def fields_of(text: str) -> Any:
    """The JSON object that ``text`` begins with."""
    return json.JSONDecoder().raw_decode(text)[0]


def check(*arguments: str) -> tuple[int, str]:
    return run("track", "check", *ARGUMENTS, *arguments)


def test_a_slower_commit_fails_with_its_case_and_reverting_it_passes() -> None:
    code, text = check("--baseline", "base", "--rev", "slower")
    assert code == 1 and "linear(quant=Q4_K,n=512,k=1536,tokens=1" in text and "takes 1.100 times as long" in text
    code, text = check("--baseline", "base")  # HEAD
    assert code == 0 and "SAME" in text and "REGRESSED" not in text
    code, text = check("--baseline", "slower")
    assert code == 0 and "IMPROVED" in text


def test_a_noisy_machine_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NOISE", "5")
    code, text = check("--baseline", "base", "--rev", "slower")
    assert code == 3 and "not known" in text
    assert check("--baseline", "base", "--rev", "slower", "--allow-inconclusive")[0] == 0


def test_a_disturbed_machine_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbench.measure.Guard.bad", lambda self: ("other processes used 90% of the CPU time",))
    code, text = check("--baseline", "base", "--rev", "slower")
    assert code == 4 and "other processes used 90%" in text


def test_one_bad_block_is_thrown_away_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([("steal",)])
    monkeypatch.setattr("kbench.measure.Guard.bad", lambda self: next(said, ()))
    code, text = check("--baseline", "base", "--json")
    assert code == 0 and fields_of(text)["cases"][0]["discarded"] == ["12 pairs: steal"]


def test_the_margin_is_never_below_what_identical_things_differ_by(tmp_path: Path) -> None:
    one = ("--suite", "smoke", "--filter", "linear(quant=Q4_K,n=512,k=1536,tokens=1,")
    code, text = run("track", "aa", *one, "--comparisons", "1", "--json", "--max-seconds", "0.5")
    assert code == 0 and fields_of(text)["n"] == 1 and fields_of(text)["stored"]["n"] == 1
    store = Store()
    (path,) = (tmp_path / "results").glob("*/*-aa.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(record["compare"]["aa"] for record in records)
    noisy = [{**record, "compare": {**record["compare"], "ratio": 1.2, "verdict": "IMPROVED"}} for record in records]
    path.write_text("".join(json.dumps(record) + "\n" for record in [*noisy] * 10))
    code, text = check("--baseline", "base", "--rev", "slower", "--json")
    fields = fields_of(text)
    assert code == 0 and fields["noise_floor"] == pytest.approx(0.2) and store.root == tmp_path / "results"
    assert [case["margin"] for case in fields["cases"]] == pytest.approx([0.2] * 2)


def test_blocks_are_stored_under_host_and_commit_and_compared_without_pairs(tmp_path: Path) -> None:
    code, text = run("track", "record", *ARGUMENTS, "--rev", "base", "--json")
    fields = fields_of(text)
    assert code == 0 and fields["commit"] == git(Path(), "rev-parse", "base")
    assert [case["n_blocks"] for case in fields["cases"]] == [5, 5]
    (path,) = (tmp_path / "results" / host().host_id).glob("*-smoke.jsonl")
    assert path.name == f"{fields['commit'][:8]}-smoke.jsonl"
    record = next(iter(Store().read()))
    assert record.commit == fields["commit"] and track_fields(record)["revision"] == "base"
    assert len({track_fields(each)["run"] for each in Store().read()}) == 1

    file = tmp_path / "base.jsonl"
    path.rename(file)
    code, text = check("--baseline", str(file), "--json")
    assert code == 3 and not fields_of(text)["paired"]  # 2.5 % a run: 3 % is out of reach
    code, text = check("--baseline", str(file), "--margin", "12")
    assert code == 0 and "SAME" in text and "no pairs" in text
    run("track", "record", *ARGUMENTS, "--rev", "slower")
    (slower,) = (tmp_path / "results" / host().host_id).glob(f"{git(Path(), 'rev-parse', 'slower')[:8]}-*.jsonl")
    code, text = run("compare", str(file), str(slower), "--json")
    (case, _) = fields_of(text)["cases"]
    assert code == 3 and case["ratio"] == pytest.approx(1.1, rel=0.01) and case["n_blocks"] == [5, 5]
    assert case["interval"][1] / case["interval"][0] > 1.1


def test_recorded_runs_of_another_machine_are_refused(tmp_path: Path) -> None:
    run("track", "record", *ARGUMENTS, "--rev", "base", "--blocks", "1")
    (path,) = (tmp_path / "results" / host().host_id).glob("*-smoke.jsonl")
    ours, theirs = tmp_path / "a.jsonl", tmp_path / "there" / "b.jsonl"
    theirs.parent.mkdir()
    ours.write_text(path.read_text())
    theirs.write_text(path.read_text().replace(host().host_id, "0123456789ab"))
    for folder, model in ((tmp_path, host().cpu.model), (theirs.parent, "Another CPU")):
        said = host().as_dict()
        said["cpu"]["model"] = model
        (folder / "host.json").write_text(json.dumps(said))
    code, text = run("compare", str(ours), str(theirs))
    assert code == 2 and "host_id" in text and "0123456789ab" in text and "and Another CPU" in text
    code, text = check("--baseline", str(theirs))
    assert code == 4 and "0123456789ab" in text


def test_a_definition_that_changed_is_no_regression() -> None:
    code, text = check("--baseline", "base", "--rev", "redefined", "--json")
    assert code == 4 and "op_spec_hash" in text and "h and another" in text


def test_compare_takes_two_revisions() -> None:
    code, text = run("compare", "--rev", "base", "--rev", "slower", *ARGUMENTS, "--json")
    fields = fields_of(text)
    assert code == 0 and fields["kind"] == "revisions" and fields["summary"][0]["ratio"] == pytest.approx(1.1, rel=0.01)
    assert {case["verdict"] for case in fields["cases"]} == {"REGRESSED"} and fields["cases"][0]["a"] == "base"
    assert run("compare", "--rev", "base", "--rev", "slower", *ARGUMENTS, "--fail-on-regression")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "--rev", "base"), "--rev: 1 revisions"),
        (("compare", "torch", "--rev", "base", "--rev", "slower"), "beside torch"),
        (("compare", "torch"), "two things to compare"),
        (("compare", "a.jsonl", "torch"), "a.jsonl is a recorded run"),
        (("compare", "none.jsonl", "none.jsonl"), "none.jsonl: cannot be read"),
        (("track", "check", "--baseline", "no-such-branch"), "no revision 'no-such-branch'"),
        (("track", "record", "--suite", "matmul-ladder"), "is a ladder"),
        (("track", "check", "--baseline", "base", "--model", "none.gguf"), "none.gguf"),
        (("track", "check", "--baseline", "base", "--model", "m", "--suite", "moe"), "--suite: a check of a model"),
        (("track", "check", "--baseline", "base", "--model", "m", "--filter", "x"), "--filter: a check of a model"),
        (("track", "check", "--baseline", "none.jsonl"), "none.jsonl: cannot be read"),
        (("track", "check", "--baseline", "none.jsonl", "--model", "m"), "--model: none.jsonl is no revision"),
        (("track", "check", "--baseline", "none.jsonl", "--max-seconds", "9"), "none.jsonl holds stored blocks"),
        (("track", "check", "--baseline", "base", "--json", "--format", "csv"), "--json and --format csv on stdout"),
        (("compare", "--rev", "base", "--rev", "no-such-branch"), "no revision 'no-such-branch'"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object, **__: object) -> None:
        raise AssertionError("a mistake is told before anything is built")

    monkeypatch.setattr("kbench.suites.build", build)
    code, text = run(*arguments)
    assert code == 2 and words in text


def test_a_revision_that_cannot_be_built_says_what_the_compiler_said() -> None:
    code, text = check("--baseline", "broken")
    assert code == 5 and "broken (" in text and "kernel.cpp:3: error: no such register" in text and "build.log" in text
    code, text = check("--baseline", "ancient")
    assert code == 5 and "older than comparisons of revisions" in text


def test_stored_blocks_take_the_place_of_a_baseline_that_cannot_be_built(tmp_path: Path) -> None:
    run("track", "record", *ARGUMENTS, "--rev", "base")
    (path,) = (tmp_path / "results" / host().host_id).glob("*-smoke.jsonl")
    broken = git(Path(), "rev-parse", "broken")
    text = path.read_text().replace(git(Path(), "rev-parse", "base"), broken)
    path.unlink()
    (path.parent / f"{broken[:8]}-smoke.jsonl").write_text(text)
    code, text = check("--baseline", "broken", "--margin", "12", "--json")
    fields = fields_of(text)
    assert code == 0 and not fields["paired"] and "take its place" in fields["notes"][0]
    assert {tuple(case["n_blocks"]) for case in fields["cases"]} == {(5, 5)}


def test_blocks_of_a_baseline_count_once_where_the_store_is_the_repository_s_own(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBENCH_RESULTS", str(repository / "results"))
    try:
        run("track", "record", *ARGUMENTS, "--rev", "base")
        (path,) = (repository / "results" / host().host_id).glob("*-smoke.jsonl")
        broken = git(Path(), "rev-parse", "broken")
        text = path.read_text().replace(git(Path(), "rev-parse", "base"), broken)
        path.unlink()
        (path.parent / f"{broken[:8]}-smoke.jsonl").write_text(text)
        code, text = check("--baseline", "broken", "--margin", "12", "--json", "--max-seconds", "9")
        fields = fields_of(text)
        assert code == 0 and {tuple(case["n_blocks"]) for case in fields["cases"]} == {(5, 5)}
        assert "--max-seconds is of pairs" in fields["notes"][1]
    finally:
        shutil.rmtree(repository / "results")


def test_a_revision_is_built_once_and_leaves_no_worktree(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kbench.suites import build, find_revision

    build(find_revision(Path(), "base"))
    revision = find_revision(Path(), "reverted")
    told: list[str] = []
    again = build(revision, tell=told.append)  # its files are base's
    assert told == [] and again.commit == revision.commit and Path(again.python).exists()
    (again.folder / "built.json").unlink()  # type: ignore[operator]
    build(revision, tell=told.append)
    assert told == [f"building reverted ({revision.commit[:8]})"]
    assert git(Path(), "worktree", "list").count("\n") == 0
    assert git(Path(), "status", "--porcelain") == ""
