"""A tune of a small file whose plan is made from made-up cells: what is predicted anew is measured in turns with it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kbench.kernels.cpu._native")

from made_up_records import record_of, seconds_of
from tiny_models import make_tiny

from kbench.core import CPU, Phase, Problem
from kbench.engine import LoadOptions, load_model
from kbench.measure import median
from kbench.model import synthesize
from kbench.results import Record, Store, read_tune_result
from kbench.suites import Row
from kbench.tuner import CostModel, TuneRequest, tune
from kbench.tuner.cost_model import Cost, Roof
from kbench.tuner.renewed_costs import RenewedCosts

tune_module = importlib.import_module("kbench.tuner.tune")
check_module = importlib.import_module("kbench.tuner.check")

# A cell of the plan takes this much longer than made-up records usually do, so that nobody takes one for the other.
SLOW = 50.0


def made_up(cells: Iterable[Any], store: object, **_: object) -> list[Record]:
    seconds = [SLOW * seconds_of(cell.problem, cell.threads) for cell in cells]
    return [
        Record.make(cell.problem, cell.implementation, threads=cell.threads, result=[0.9 * s, s, 1.1 * s])
        for cell, s in zip(cells, seconds, strict=True)
    ]


class Loads:
    """Loads the model for real, and counts how often; its sessions stop at a phase that is ``broken``."""

    def __init__(self) -> None:
        self.n, self.broken = 0, ""

    def __call__(self, path: Path, rules: Any, request: TuneRequest) -> Any:
        self.n += 1
        session = load_model(
            path, rules, LoadOptions(context=request.context, threads=request.threads, chunk=request.chunk)
        )
        if self.broken:

            def stop(*_: Any) -> None:
                raise KeyboardInterrupt

            setattr(session, self.broken, stop)
        return session


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneRequest:
    """A prompt of two whole steps and a half one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune_module, "run_cells", made_up)
    monkeypatch.setattr(tune_module, "rehearse", lambda *_, **__: [])
    monkeypatch.setattr(tune_module, "measured_roof", lambda store, threads, again=False: Roof())
    monkeypatch.setattr(check_module, "renewed_roof", lambda roof, threads: roof)
    monkeypatch.setattr(check_module, "_STEPS", {Phase.PREFILL: 4, Phase.DECODE: 12})
    synthesize(make_tiny("llama", "Q8_0"), tmp_path / "small.gguf")
    sizes: dict[str, Any] = {"context": 128, "prompt_tokens": 40, "gen_tokens": 8, "chunk": 16, "vram_bytes": 0}
    return TuneRequest(model=str(tmp_path / "small.gguf"), threads=1, **sizes)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[Record]]:
    """What was timed in place, run by run."""
    found: list[list[Record]] = []
    records = Row.records

    def kept(row: Row, *arguments: Any) -> list[Record]:
        found.append(records(row, *arguments))
        return found[-1]

    monkeypatch.setattr(Row, "records", kept)
    return found


def engine_records(store: Store) -> dict[str, Record]:
    found = store.find(implementation="engine")
    assert len(found) == len({record.op for record in found}), "a phase was run twice"
    return {record.op: record for record in found}


def test_what_is_reported_took_turns_with_the_engine(
    small: TuneRequest, tmp_path: Path, runs: list[list[Record]]
) -> None:
    store = Store(tmp_path / "results")
    fields = tune(small, store, load_session=Loads()).fields
    assert read_tune_result(Path("kbench-rules/small.tune.json"))["check"] == fields["check"]
    prefill, decode = runs  # of no other run anything is reported
    ran = engine_records(store)
    for records, phase, n in ((prefill, "prefill", 4), (decode, "decode", 12)):
        # As many samples as steps of the engine, and the samples stopped for these.
        assert {len(record.samples) for record in records} == {n} == {len(ran[phase].samples)}
        assert {record.stop_reason for record in records} == {f"{n} steps in turns with the engine"}
    # The whole model runs in place: what is predicted is the run, and nothing of what the plan was made from.
    whole = sum(record.extra["in_place"] * median(record.samples) for record in decode)
    assert fields["predicted"]["decode_tokens_per_s"] == pytest.approx(1 / whole)
    assert fields["measured"]["decode_tokens_per_s"] == pytest.approx(1 / median(ran["decode"].samples))
    assert fields["planned"]["decode_tokens_per_s"] < fields["predicted"]["decode_tokens_per_s"]
    without = tune(replace(small, prove=False), store).fields
    assert without["predicted"] == without["planned"] == fields["planned"] and without["check"] is None
    # Half way through the answer, and at the mean depth of the prompt's steps: of 40 tokens 12 are before it.
    assert ran["decode"].problem["depth"] == 40
    assert ran["prefill"].problem["depth"] == 12 and ran["prefill"].problem["tokens"] == 16
    tail = ran["prefill"].extra["tail_seconds"]
    assert len(tail) == 3
    prompt = 2 * median(ran["prefill"].samples) + median(tail)
    assert fields["measured"]["prefill_tokens_per_s"] == pytest.approx(40 / prompt)
    for phase in ("decode", "prefill"):
        rates = [fields[of][f"{phase}_tokens_per_s"] for of in ("predicted", "measured")]
        assert fields["error"][phase] == pytest.approx(rates[0] / rates[1] - 1)
    assert fields["check"]["prediction"] == "in turns" and fields["check"]["run"] == "now"
    assert "predicted:" in fields["rules"]


def test_a_second_tune_loads_nothing_and_says_the_same(
    small: TuneRequest, tmp_path: Path, runs: list[list[Record]]
) -> None:
    store, loads = Store(tmp_path / "results"), Loads()
    first = tune(small, store, load_session=loads).fields
    again = tune(small, Store(tmp_path / "results"), load_session=loads).fields
    assert loads.n == 1 and len(runs) == 2
    for name in ("predicted", "planned", "measured", "error"):
        assert again[name] == first[name], name
    assert again["check"] == {**first["check"], "run": "stored"}
    # Of another workload nothing is known, and what is known may be asked for again.
    loads.broken = "prefill"
    for n, other in enumerate((replace(small, gen_tokens=6), replace(small, remeasure=True))):
        with pytest.raises(KeyboardInterrupt):
            tune(other, store, load_session=loads)
        assert loads.n == 2 + n


def test_a_check_that_was_stopped_goes_on_where_it_was(
    small: TuneRequest, tmp_path: Path, runs: list[list[Record]]
) -> None:
    store, loads = Store(tmp_path / "results"), Loads()
    loads.broken = "decode"
    with pytest.raises(KeyboardInterrupt):
        tune(small, store, load_session=loads)
    (known,) = engine_records(store).values()
    assert known.op == "prefill" and len(runs) == 1
    loads.broken = "truncate"  # what prefill steps begin with, and the first thing that decode does after the prompt
    with pytest.raises(KeyboardInterrupt):
        tune(small, store, load_session=loads)
    loads.broken = ""
    fields = tune(small, store, load_session=loads).fields
    assert engine_records(store)["prefill"] == known and len(runs) == 2
    assert fields["check"]["run"] == "now" and fields["check"]["created"] == known.created


def test_without_memory_for_both_the_engine_runs_alone(
    small: TuneRequest, tmp_path: Path, runs: list[list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "_free_bytes", lambda: 1 << 20)
    store = Store(tmp_path / "results")
    fields = tune(small, store, load_session=Loads()).fields
    assert not runs and fields["predicted"] == fields["planned"]
    assert fields["check"]["prediction"] == "of the plan"
    assert {len(record.samples) for record in engine_records(store).values()} == {4, 12}


def test_a_plan_of_several_thread_counts_is_one_run(
    small: TuneRequest, tmp_path: Path, runs: list[list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attention_alone(cells: Iterable[Any], store: object, **_: object) -> list[Record]:
        slower = {("attention", 2): 10.0}
        return [
            replace(record, samples=tuple(slower.get((record.op, record.threads), 1.0) * s for s in record.samples))
            for record in made_up(cells, store)
        ]

    monkeypatch.setattr(tune_module, "run_cells", attention_alone)
    monkeypatch.setattr(tune_module, "thread_counts", lambda usable, pinned: (1, 2))
    fields = tune(replace(small, threads=None), Store(tmp_path / "results"), load_session=Loads()).fields
    _, decode = runs
    assert {record.threads for record in decode if record.op == "attention"} == {1}
    assert {record.threads for record in decode if record.op == "linear"} == {2}
    whole = sum(record.extra["in_place"] * median(record.samples) for record in decode)
    assert fields["predicted"]["decode_tokens_per_s"] == pytest.approx(1 / whole)


@pytest.mark.parametrize("architecture", ["gpt-oss", "deepseek2"])
def test_models_whose_caches_forget_or_are_latent(
    small: TuneRequest, tmp_path: Path, architecture: str, runs: list[list[Record]]
) -> None:
    synthesize(make_tiny(architecture, "Q8_0"), Path(small.model), force=True)
    fields = tune(small, Store(tmp_path / "results"), load_session=Loads()).fields
    assert fields["measured_reason"] is None and fields["check"]["prediction"] == "in turns"
    assert len(runs) == 2


def test_renewed_prices() -> None:
    """What was measured again counts; what a search chose moves with it; all else is as it was."""
    small, other = (Problem.make("linear", quant="Q8_0", n=n, k=512, tokens=1) for n in (256, 512))
    costs = CostModel([record_of(p, "cpu.avx2", n) for p in (small, other) for n in (1, 2)], threads=(1, 2))
    slower = [2 * seconds for seconds in record_of(small, "cpu.avx2", 2).samples]
    record = replace(record_of(small, "cpu.avx2", 2), samples=tuple(slower), median=median(slower))
    renewed = RenewedCosts(costs, [record], Roof())

    def ratio(problem: Problem, threads: int) -> float:
        before, now = costs.cost(problem, CPU, threads), renewed.cost(problem, CPU, threads)
        assert before is not None and now is not None
        return now.seconds / before.seconds

    assert ratio(small, 2) == pytest.approx(2.0) and ratio(small, 1) == ratio(other, 2) == 1.0
    chosen = Cost(1.0, 0.9, 1.1, "measured", "cpu.avx2", 63)
    assert renewed.adjusted(chosen, small, CPU) == chosen.scaled(ratio(small, 2))
    assert renewed.adjusted(chosen, other, CPU) == chosen
