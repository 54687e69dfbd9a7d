"""A plan for several sequences: its result says so, and what runs one sequence is no proof of it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_records import HOST_ID, records
from rich.console import Console

from kbench.core import CPU, Phase
from kbench.report import print_tune_report
from kbench.results import Store
from kbench.tuner import CostModel, TuneReport, TuneRequest, cells, replay
from kbench.tuner.budget import Budget
from kbench.tuner.prove import prove
from kbench.tuner.tune import place, plan_of

REQUEST = TuneRequest(
    model="deepseek-v2-lite-chat", vram_bytes=0, dram_bytes=32 << 30, batch=4, context=512, objective="decode"
)
THREADS = (1, 2)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> TuneReport:
    store = Store(tmp_path_factory.mktemp("store"))
    store.append(records(cells(plan_of(REQUEST), THREADS)), suite="made-up")
    return replay(REQUEST, store, HOST_ID, THREADS)


def test_the_result_has_what_was_asked(report: TuneReport) -> None:
    assert {**report.fields["workload"], "batch": 4, "objective": "decode"} == report.fields["workload"]
    terminal = io.StringIO()
    print_tune_report(Console(file=terminal, width=100), {**report.fields, "host": {"cpu": "A processor", "cores": 2}})
    said = " ".join(terminal.getvalue().split())  # lines end where the terminal does
    assert "4 sequences at once; 256 tokens a prefill step; fastest for writing" in said
    assert "one written token of each of 4 sequences" in said


def test_seconds_by_threads_are_of_the_whole_batch(report: TuneReport) -> None:
    rows = [row for row in report.fields["ops"] if row["phase"] == str(Phase.DECODE)]
    assert {"mla_attention", "linear"} <= {row["op"] for row in rows}
    for row in rows:
        assert row["seconds_by_threads"][str(row["threads"])] == pytest.approx(row["seconds"]), row["op"]


@pytest.mark.parametrize("batch", [1, 4])
def test_one_sequence_is_no_proof_of_a_batch(tiny_gguf: Path, tmp_path: Path, batch: int) -> None:
    class Ran(Exception):
        pass

    def load(*_: Any) -> None:
        raise Ran

    request = replace(REQUEST, model=str(tiny_gguf), batch=batch)
    plan = plan_of(request)
    costs = CostModel(records(cells(plan, THREADS)), threads=THREADS)
    placed = place(plan, costs, [Budget(CPU, 1 << 30, 0, 0)], {})
    arguments = (request, plan, placed, None, Store(tmp_path), load, lambda *_: None)
    if batch == 1:
        with pytest.raises(Ran):
            prove(*arguments)  # type: ignore[arg-type]
    else:
        proof = prove(*arguments)  # type: ignore[arg-type]
        assert proof.measured is None and "a batch was planned" in proof.reason
