"""A tune that is killed at any moment and run again: the same rules, and no cell measured twice."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny

from kbench.core import Placement
from kbench.model import synthesize
from kbench.results import Record, Store
from kbench.rules import assign, load_rules
from kbench.suites import Cell
from kbench.suites import runner as runner_module
from kbench.tuner import SearchRequest, TuneRequest, tune
from kbench.tuner import search as search_module
from kbench.tuner.cost_model import Roof
from kbench.tuner.tune import plan_of

tune_module = importlib.import_module("kbench.tuner.tune")

_KILLS = 4


def made_up_seconds(cell: Cell) -> float:
    """By the cell alone, so that a cell that was measured before and after a kill would not show; up to 30 % apart, so
    that the search has something to find."""
    spread = zlib.crc32(f"{cell.problem.op} {sorted(cell.block.items())} {cell.threads}".encode()) % 1000 / 1000
    size = zlib.crc32(cell.problem.key.encode()) % 97 + 3
    return 1e-6 * size * (1 + 0.3 * spread) / cell.threads**0.5


def _measured(bench: Any, cell: Cell, item: object) -> Record:
    """Everything of a measurement but the measuring."""
    return Record.make(
        cell.problem,
        cell.implementation,
        threads=cell.threads,
        result=[made_up_seconds(cell)] * 7,
        op_spec_hash=runner_module.op_spec(cell.problem.op).hash,
        extra=bench._about(cell),
    )


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneRequest:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner_module._Bench, "_measured", _measured)
    monkeypatch.setattr(tune_module, "measured_roof", lambda store, threads, again=False: Roof())
    monkeypatch.setattr(tune_module, "rehearse", lambda *args, **options: [])
    monkeypatch.setattr(search_module, "_MOST", 10)  # some seconds
    synthesize(make_tiny("qwen3moe", "Q8_0"), tmp_path / "moe.gguf")
    sizes: dict[str, Any] = {"context": 128, "prompt_tokens": 64, "gen_tokens": 16, "vram_bytes": 0}
    return TuneRequest(model=str(tmp_path / "moe.gguf"), prove=False, search=SearchRequest(), **sizes)


def _tune(request: TuneRequest, root: Path) -> None:
    tune(request, Store(root))


def _identities(root: Path) -> Counter[tuple[Any, ...]]:
    return Counter((r.key, r.implementation, str(sorted(r.extra["block"].items()))) for r in Store(root).read())


def _assignment(request: TuneRequest) -> dict[str, Placement]:
    return dict(assign(load_rules(Path("kbench-rules/moe.yaml")), plan_of(request).tree, Placement()))


def test_killed_at_any_moment_it_ends_with_the_same_rules_and_repeats_nothing(
    request_: TuneRequest, tmp_path: Path
) -> None:
    started = time.monotonic()
    _tune(request_, tmp_path / "whole")
    seconds = time.monotonic() - started
    expected = _assignment(request_)
    assert any(placement.block for placement in expected.values()), "the search chose something"
    whole = _identities(tmp_path / "whole")
    Path("kbench-rules/moe.yaml").unlink()

    processes = multiprocessing.get_context("fork")
    chance = random.Random(8)
    killed = 0
    for _ in range(_KILLS):
        child = processes.Process(target=_tune, args=(request_, tmp_path / "killed"))
        child.start()
        child.join(timeout=chance.uniform(0.02, 0.5) * seconds)
        if child.is_alive():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            killed += 1
        child.join()
    assert killed > 0
    _tune(request_, tmp_path / "killed")

    assert _assignment(request_) == expected
    again = _identities(tmp_path / "killed")
    assert again == whole and set(again.values()) == {1}


def test_a_second_search_measures_nothing(request_: TuneRequest, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    first = tune(request_, store).fields["search"]
    second = tune(request_, store).fields["search"]
    assert first["n_measured"] > 0 and second["n_measured"] == 0
    assert second["choices"] == first["choices"]
