"""The index: always what the files say, whatever happened to it; and pruning, which never loses what is written
meanwhile."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import KbenchError, Problem, UserError
from kbench.results import Index, Record, Store, frame, old_places, prune

LINEAR = Problem.make("linear", quant="Q4_K", n=1536, k=5120, tokens=1)


def record(created: str, implementation: str = "cpu.avx2", commit: str = "a" * 40, **changes: object) -> Record:
    made = Record.make(LINEAR, implementation, threads=2, result=(0.1, 0.2, 0.4))
    return dataclasses.replace(made, created=created, commit=commit, **changes)  # type: ignore[arg-type]


OLD, MIDDLE, NEW = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path)
    found.append([record(MIDDLE), record(OLD), record(NEW, "torch")], suite="ops-cpu")
    found.append(record(NEW, commit="b" * 40, status="crashed", samples=(), median=None), suite="track")
    return found


def created(index: Index, **like: str) -> list[str]:
    return [each.created for each in index.records(index.find(like))]


def test_files_and_records_are_found(store: Store) -> None:
    with Index(store.root) as index:
        ops, track = index.files()
        assert (ops.commit, ops.suite, ops.n_records, ops.n_ok, ops.first, ops.last) == (
            "a" * 40, "ops-cpu", 3, 3, OLD, NEW,
        )  # fmt: skip
        assert (track.n_records, track.n_ok) == (1, 0)
        assert created(index, implementation="cpu.avx2") == [OLD, MIDDLE, NEW]
        assert created(index, key="linear(*n=1536*", status="ok", suite="ops") == [OLD, MIDDLE, NEW]
        assert created(index, threads="2", implementation="torch") == [NEW]
        assert [each.created for each in index.records(index.find({}, since=MIDDLE, limit=2))] == [NEW, NEW]
        with pytest.raises(UserError, match="unknown column 'colour'"):
            index.find({"colour": "red"})


def test_it_follows_appends_replaced_and_removed_files(store: Store) -> None:
    with Index(store.root) as index:
        assert len(index.find({})) == 4
    store.append(record(NEW), suite="ops-cpu")
    (ops,) = store.root.glob("*/*-ops-cpu.jsonl")
    with Index(store.root) as index:
        assert len(index.find({})) == 5
    lines = ops.read_bytes().splitlines(keepends=True)
    ops.with_suffix(".new").write_bytes(b"".join(lines[:2]))
    ops.with_suffix(".new").replace(ops)
    with Index(store.root) as index:
        assert len(index.find({})) == 3
    ops.unlink()
    with Index(store.root) as index:
        assert len(index.find({})) == 1


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, None])
def test_a_lost_or_broken_index_is_made_anew(store: Store, content: bytes | None) -> None:
    with Index(store.root) as index:
        before = index.files()
        path = index.path
    path.unlink() if content is None else path.write_bytes(content)
    with Index(store.root) as index:
        assert index.files() == before
        index.rebuild()
        assert index.files() == before


def test_records_are_a_table(store: Store) -> None:
    table = frame(store.read())
    assert len(table) == 4 and set(table["problem.n"]) == {1536}
    assert table[table.status == "ok"]["median"].tolist() == [0.2, 0.2, 0.2] and str(table.created.dtype).endswith(
        "UTC]"
    )
    assert list(frame([]).columns)[:2] == ["created", "host_id"]


def test_pruning_keeps_the_newest_of_each_case(store: Store) -> None:
    with Index(store.root) as index:
        assert old_places(index, before=OLD, keep=0) == set()
        places = old_places(index, before="2026-02-15", keep=1)
        assert [each.created for each in index.records(sorted(places, key=lambda place: place[1]))] == [MIDDLE, OLD]
        gone = prune(store.root, places)
    assert (gone.n_records, gone.n_files, gone.n_kept) == (2, 0, 1)
    assert sorted(each.created for each in store.read()) == [NEW, NEW]
    with Index(store.root) as index:
        done = prune(store.root, old_places(index, before="2027-01-01", keep=0))
    assert done.n_files == 2 and list(store.root.glob("*/*.jsonl")) == []


def _append(root: str, n: int) -> None:
    store = Store(root)
    for i in range(n):
        store.append(record(NEW, median=float(i)), suite="ops-cpu")


def test_nothing_is_lost_that_is_written_while_others_prune(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    writers = [context.Process(target=_append, args=(str(tmp_path), 60)) for _ in range(2)]
    for writer in writers:
        writer.start()
    store = Store(tmp_path)
    while any(writer.is_alive() for writer in writers):
        store.append(record(OLD), suite="ops-cpu")
        with Index(tmp_path) as index:
            prune(tmp_path, old_places(index, before=MIDDLE, keep=0))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = [each.median for each in Store(tmp_path).read() if each.created == NEW]
    assert sorted(found) == sorted([float(i) for i in range(60)] * 2)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), ["results", *arguments])
    if isinstance(result.exception, KbenchError):
        return result.exception.message
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_verb(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBENCH_RESULTS", str(store.root))
    assert [each["n_records"] for each in json.loads(run("list", "--json"))["files"]] == [3, 1]
    assert "ops-cpu" in run("list", "--rebuild") and "cpu.avx2" in run("query", "status=ok")
    lines = run("query", "implementation=torch", "--format", "jsonl").splitlines()
    assert [Record.from_json(line).created for line in lines] == [NEW]
    assert run("query", "--since", "2026-02-20", "--format", "csv").count("\n") == 3
    assert json.loads(run("query", "--json"))["records"][0]["created"] == OLD
    assert "2 records of 1 file would go" in run("prune", "--before", "2026-02-15")
    assert "2 records and 0 files went" in run("prune", "--before", "2026-02-15", "--yes")
    for arguments, words in (
        (("query", "nonsense"), "COLUMN=TEXT"), (("query", "--format", "xml"), "--format"),
        (("query", "--since", "soon"), "--since"), (("prune", "--before", "then"), "--before"),
    ):  # fmt: skip
        assert words in run(*arguments)


def test_what_sqlite_cannot_hold_is_indexed_and_found(tmp_path: Path) -> None:
    path = tmp_path / "h" / "a-track.jsonl"
    path.parent.mkdir()
    made = json.loads(record(NEW).to_json())
    # Half of a character, which JSON can spell: the index holds what UTF-8 has for it.
    path.write_text(json.dumps({**made, "key": "half\ud800"}) + "\n")
    with Index(tmp_path) as index:
        assert len(index.find({"key": "half"})) == 1
        assert len(index.find({"key": "half\udcff"})) == 1  # what a shell hands on of a name in another encoding


def test_an_index_that_is_damaged_further_in_is_made_anew(store: Store) -> None:
    store.append([record(NEW, f"x{i}") for i in range(300)], suite="ops-cpu")
    with Index(store.root) as index:
        whole = index.find({})
    data = bytearray(index.path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)  # its first page stays
    index.path.write_bytes(data)
    with Index(store.root) as index:
        assert index.find({}) == whole and sum(each.n_records for each in index.files()) == len(whole) == 304


def test_pruning_keeps_the_newest_of_each_setting(store: Store) -> None:
    settings = [{"tile": 1}, {"tile": 2}]
    store.append([record(OLD, "swept", extra={"block": block}) for block in settings], suite="blocks-cpu")
    store.append(record(OLD, "swept", device="cuda:0"), suite="blocks-cpu")
    with Index(store.root) as index:
        assert old_places(index, before=NEW, keep=1, suite="blocks-cpu") == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("list", "--store", "nowhere"), "no such folder"), (("query", "--json", "--format", "csv"), "beside --json")],
)
def test_mistakes(arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(build_app(), ["results", *arguments]).exception
    assert isinstance(error, UserError) and words in error.message and not (tmp_path / "nowhere").exists()
