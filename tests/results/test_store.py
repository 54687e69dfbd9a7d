"""The store: nothing is lost between processes, a kill leaves no broken file, mistakes get one clear message."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from kbench.core import CorruptFile, Problem, UserError
from kbench.measure import host
from kbench.results import Record, Store, default_root

LINEAR = Problem.make("linear", quant="Q4_K", n=1536, k=5120, tokens=1)


def record(implementation: str = "cpu.avx2", samples: tuple[float, ...] = (0.1, 0.2, 0.4), **changes: object) -> Record:
    made = Record.make(LINEAR, implementation, threads=2, result=samples)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_what_is_appended_is_read_back_exactly(tmp_path: Path) -> None:
    store = Store(tmp_path)
    written = [record(samples=(1 / 3, 2e-9, 0.1 + 0.2)), record("torch", status="crashed", samples=(), median=None)]
    store.append(written, suite="ops")
    assert list(Store(tmp_path).read()) == written
    assert store.path(written[0], "ops") == tmp_path / host().host_id / f"{written[0].commit[:8]}-ops.jsonl"


def test_the_host_is_stored_once_beside_its_records(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(record(), suite="ops")
    path = tmp_path / host().host_id / "host.json"
    assert json.loads(path.read_text())["host_id"] == host().host_id
    path.write_text("kept")
    store.append(record(), suite="ops")
    assert path.read_text() == "kept"


def test_find_filters_and_orders_by_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = record(created="2026-01-01T00:00:00+00:00", median=1.0)
    new = record(created="2026-02-01T00:00:00+00:00", median=2.0)
    other = record("torch", created="2026-03-01T00:00:00+00:00")
    failed = record(created="2026-04-01T00:00:00+00:00", status="wrong")
    store.append([new, other, failed], suite="ops")
    store.append(old, suite="tune")
    assert store.find(key=new.key, implementation="cpu.avx2", status="ok") == [old, new]
    assert store.find(implementation="torch", host_id=host().host_id) == [other]
    assert store.find(host_id="elsewhere") == []
    assert store.find(op="rope") == []
    assert store.latest(new.key, "cpu.avx2", status="ok") == new
    assert store.latest("nothing()", "cpu.avx2") is None


def test_a_reader_sees_what_another_store_appends_later(tmp_path: Path) -> None:
    reader, writer = Store(tmp_path), Store(tmp_path)
    for n in range(1, 4):
        writer.append(record(median=float(n)), suite="ops")
        assert [r.median for r in reader.read()] == [float(i) for i in range(1, n + 1)]


def _append_many(root: str, worker: int, n: int) -> None:
    store = Store(root)
    for i in range(n):
        # Longer than a pipe's or a page's atomic write, so that torn or mixed lines would show.
        store.append(record(f"worker{worker}", samples=tuple([0.125] * 2000), median=float(i)), suite="ops")


def test_processes_never_lose_a_line(tmp_path: Path) -> None:
    n_workers, n = 4, 15
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    workers = [context.Process(target=_append_many, args=(str(tmp_path), w, n)) for w in range(n_workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    records = list(Store(tmp_path).read())
    assert len(records) == n_workers * n
    for w in range(n_workers):
        assert [r.median for r in records if r.implementation == f"worker{w}"] == [float(i) for i in range(n)]


def _append_thousands(root: str, worker: int) -> None:
    store, template = Store(root), record(f"worker{worker}")
    for i in range(0, 10_000, 40):
        store.append([dataclasses.replace(template, median=float(j)) for j in range(i, i + 40)], suite="ops")


def test_two_processes_append_ten_thousand_records_each_and_lose_none(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    workers = [context.Process(target=_append_thousands, args=(str(tmp_path), w)) for w in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    medians: dict[str, list[float | None]] = {}
    for each in Store(tmp_path).read():
        medians.setdefault(each.implementation, []).append(each.median)
    assert medians == {f"worker{w}": [float(i) for i in range(10_000)] for w in range(2)}


def _append_for_ever(root: str) -> None:
    store = Store(root)
    while True:
        store.append(record(samples=tuple([0.125] * 2000)), suite="ops")


@pytest.mark.filterwarnings("ignore:.*unfinished")
def test_a_kill_at_any_moment_leaves_whole_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    store = Store(tmp_path)
    store.append(record(samples=()), suite="ops")
    path = store.path(record(), "ops")
    for _ in range(3):
        size = path.stat().st_size
        worker = context.Process(target=_append_for_ever, args=(str(tmp_path),))
        worker.start()
        while path.stat().st_size < size + 100_000:
            worker.join(0.002)
            assert worker.exitcode is None
        worker.kill()
        worker.join(60)
        n_before = len(list(store.read()))
        store.append(record(samples=()), suite="ops")
        assert len(list(store.read())) == n_before + 1 > 5
    assert list(Store(tmp_path).read()) == list(store.read())


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_torn_last_line_is_skipped_and_repaired(tmp_path: Path, cut: int) -> None:
    store = Store(tmp_path)
    first, lost, third = record(median=1.0), record(median=2.0), record(median=3.0)
    store.append([first, lost], suite="ops")
    path = store.path(first, "ops")
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.warns(UserWarning, match="unfinished"):
        assert list(Store(tmp_path).read()) == [first]
    store.append(third, suite="ops")
    assert list(Store(tmp_path).read()) == [first, third]
    assert list(store.read()) == [first, third]


def test_a_file_with_nothing_but_a_torn_line(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.path(record(), "ops")
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"schema":1,' + b"x" * 200_000)  # longer than the step in which the end is searched
    store.append(record(median=5.0), suite="ops")
    assert [r.median for r in store.read()] == [5.0]


def test_a_broken_line_in_the_middle_is_located(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([record(), record()], suite="ops")
    path = store.path(record(), "ops")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"schema": 1', lines[1]]) + "\n")
    with pytest.raises(CorruptFile, match=rf"{path.name}:2: no valid JSON"):
        list(Store(tmp_path).read())


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.append(record(median=1.0), suite="ops")
    path = store.path(record(), "ops")
    before = path.read_bytes()
    write, calls = os.write, []

    def full(descriptor: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return write(descriptor, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match=r"No space left.*free some space"):
        store.append(record(median=2.0), suite="ops")
    assert path.read_bytes() == before


def test_an_unwritable_folder_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written.*KBENCH_RESULTS"):
        Store(tmp_path / "file").append(record(), suite="ops")


@pytest.mark.parametrize("suite", ["", "../x", "a/b", ".hidden", "x" * 100, "a\nb"])
def test_a_suite_name_cannot_leave_the_folder(tmp_path: Path, suite: str) -> None:
    with pytest.raises(UserError, match="suite"):
        Store(tmp_path).append(record(), suite=suite)


def test_a_host_id_from_elsewhere_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="host_id"):
        Store(tmp_path).append(record(host_id="../../x"), suite="ops")


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KBENCH_RESULTS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root() == tmp_path / "data/kbench/results"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_root() == Path.home() / ".local/share/kbench/results"
    (tmp_path / "src/kbench/results").mkdir(parents=True)
    assert default_root() == tmp_path / "results/local"
    monkeypatch.setenv("KBENCH_RESULTS", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"
