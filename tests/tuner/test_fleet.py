"""Machines of one kind that share a study through PostgreSQL: two processes and a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import postgres_server
from test_search import Bench, made_up, run, seconds_of

import kbench
from kbench.tuner.search import limit_of
from kbench.tuner.study import open_studies

WORKER = Path(__file__).parent / "fleet_worker.py"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


def database(server: str, name: str) -> str:
    """A database of the test's own."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.rpartition("/")[0] + f"/{name}"


def start(url: str, folder: Path, die_at: int = 0) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(kbench.__file__).parents[1]), str(WORKER.parent)])
    return subprocess.Popen(
        [sys.executable, str(WORKER), url, str(folder), *([str(die_at)] if die_at else [])],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def go(folder: Path, n_workers: int, workers: list[subprocess.Popen[str]]) -> None:
    end = time.monotonic() + 120
    while len(list(folder.glob("ready-*"))) < n_workers:
        assert time.monotonic() < end and all(worker.poll() is None for worker in workers)
        time.sleep(0.02)
    (folder / "go").touch()


def answer(worker: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = worker.communicate(timeout=120)
    assert worker.returncode == 0
    return dict(json.loads(out))


def test_two_workers_share_the_work_and_agree(server: str, tmp_path: Path) -> None:
    url = database(server, "shared")
    workers = [start(url, tmp_path) for _ in range(2)]  # they make the tables at the same time, too
    go(tmp_path, 2, workers)
    one, other = map(answer, workers)
    assert one["best"] == other["best"] and one["known"] == other["known"]
    assert one["cells"] and other["cells"]
    assert not set(one["cells"]) & set(other["cells"]), "measured by both"
    # Both may begin a last one at the same moment.
    assert len(one["cells"]) + len(other["cells"]) == one["known"] <= limit_of(made_up()) + 1
    space = made_up()
    found = next(setting for setting in space.allowed if [str(value) for value in setting] == one["best"])
    assert seconds_of(space.cell(found)) <= 1.02 * min(seconds_of(space.cell(setting)) for setting in space.allowed)
    # A third that comes later has nothing left to do.
    late = Bench()
    with open_studies(url, "host") as studies:
        run(space, late, studies)
    assert late.cells == []


def test_what_a_dead_worker_was_measuring_is_measured_by_another(server: str, tmp_path: Path) -> None:
    url = database(server, "dead")
    dying = start(url, tmp_path, die_at=3)
    go(tmp_path, 1, [dying])
    assert dying.stdout is not None
    lost = json.loads(dying.stdout.readline())["cells"]
    dying.kill()
    dying.wait(timeout=30)
    living = answer(start(url, tmp_path))
    assert lost[-1] in living["cells"] or living["known"] == limit_of(made_up())
    assert not set(lost[:-1]) & set(living["cells"])
