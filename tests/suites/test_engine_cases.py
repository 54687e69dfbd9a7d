"""Engine cases: what a suite file says, what is stored of a run, what is not run again, what a process comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny

from kbench.core import AUTO, Phase, Placement, UserError, work
from kbench.engine import load_model
from kbench.measure import host
from kbench.model import describe_gguf, lower, open_gguf, synthesize
from kbench.results import Store
from kbench.suites import (
    EngineCase,
    engine_cases,
    english,
    expand,
    load_suite,
    parse_suite,
    run_engine_cases,
    select_any,
)
from kbench.suites.engine_bench import in_a_process
from kbench.suites.engine_worker import run_case
from kbench.suites.realised import fallbacks, realised, replaced

GOOD = """suite: 1
name: whole
threads: [1, max]
engine:
- {prompt: [16, 32], depth: [0, 8], generate: 4, tags: [quick, decode]}
- {prompt: 16, generate: 0, batch: 2, threads: 1, prefill_threads: 2, kv: q8_0, tokens: text, tags: batch}
exclude: ["engine(*prompt=32,depth=8*"]
"""
LLAMA = make_tiny()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "tiny.gguf"
    synthesize(LLAMA, path)
    return path


def answer(case: EngineCase) -> dict[str, Any]:
    """What a process would say of a case: decode steps of 1, 2, ... ms."""
    return {
        "load_seconds": 2.0, "first_run_seconds": 1.0, "first_prefill_seconds": 0.75,
        "prefill_seconds": [0.5, 0.25, 0.5],
        "decode_seconds": [i / 1000 for i in range(1, case.generate * case.repetitions + 1)],
        "peak_rss_bytes": 1 << 30, "peak_vram_bytes": None, "decode_bytes": 1e6, "prefill_flops": 1e9,
        "roof": {"bytes_per_s": 1e9, "int8_ops_per_s": None},
        "realised": {"prefill": {"cpu x": 3}, "decode": {"cpu x": 3}},
        "replaced": [],
        "threads": {"decode": 1, "prefill": 1}, "chunk": 256, "report": {}, "quant": "Q4_K_M", "traffic": [],
    }  # fmt: skip


def test_the_product_of_the_axes() -> None:
    suite = parse_suite(GOOD)
    cases = engine_cases(suite, "models/a.Q4.gguf")
    counts = len({1, host().usable_cpus})
    assert len(cases) == 3 * counts + 1 and not expand(suite)
    assert cases[0].key == ("engine(model=a.Q4,tokens=random,prompt=16,depth=0,generate=4,batch=1,kv=f16,threads=1)")
    assert cases[-1].prefill_threads == 2 and "prefill_threads=2,threads=1" in cases[-1].key
    assert len(set(cases)) == len(cases)
    _, chosen = select_any((), cases, "prompt=16,depth=8")
    assert {case.depth for case in chosen} == {8}
    with pytest.raises(UserError, match="need a model"):
        engine_cases(suite)
    with pytest.raises(UserError, match="matches no case"):
        select_any((), cases, "prompt=17")


def test_tags_pick_entries() -> None:
    suite = parse_suite(GOOD)
    assert len(engine_cases(suite.tagged(["batch"]), "m.gguf")) == 1
    assert suite.tagged([]) is suite
    with pytest.raises(UserError, match="batch, decode, quick"):
        suite.tagged(["quik"])


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("prompt: [16, 32]", "promt: 16", 5, "did you mean prompt"),
        ("prompt: [16, 32]", "prompt: 0", 5, "prompt is 0"),
        ("prompt: [16, 32]", "prompt: []", 5, "prompt is empty"),
        ("generate: 4", "generate: many", 5, "generate is 'many'"),
        ("kv: q8_0", "kv: q9", 6, "kv is 'q9'"),
        ("tokens: text", "tokens: zeros", 6, "tokens is 'zeros'"),
        ("threads: 1, pre", "threads: 0, pre", 6, "threads is 0"),
        ("tags: batch", "tags: 7", 6, "tags is 7"),
        ("tags: batch", "repetitions: [1, 2]", 6, "2 repetitions"),
        ("prompt: [16, 32]", "prompt: 16, batch: 1025", 5, "batch is 1025"),
    ],
)
def test_mistakes_are_located(old: str, new: str, line: int, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        parse_suite(GOOD.replace(old, new), "s.yaml")
    assert caught.value.where == f"s.yaml:{line}" and message in caught.value.message


def test_what_a_run_comes_to_is_four_records(tmp_path: Path) -> None:
    case = EngineCase("m.gguf", 1, prompt=100, generate=32, batch=2)
    store = Store(tmp_path)
    records = run_engine_cases([case], store, run=answer, suite="engine")
    assert [record.op for record in records] == ["load", "first_run", "prefill", "decode"]
    assert all(record.key.endswith(case.key.removeprefix("engine")) for record in records)
    prefill, decode = (record.extra["engine"] for record in records[2:])
    assert prefill["tokens_per_s"] == pytest.approx(200 / 0.5) and prefill["share_of_roof"] is None
    # 96 steps of 1 to 96 ms: tokens/s from their mean, bytes/s from their median.
    assert decode["tokens_per_s"] == pytest.approx(2 / 0.0485)
    assert decode["share_of_roof"] == pytest.approx(1e6 / 0.0485 / 1e9)
    assert decode["percentiles"]["p95"]["low"] < decode["percentiles"]["p95"]["seconds"] == pytest.approx(0.09125)
    assert decode["percentiles"]["p99"] == {"seconds": None, "samples": 96, "samples_needed": 368}
    assert [record.op for record in Store(tmp_path).read()] == [record.op for record in records]


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    cases = [EngineCase("m.gguf", 1, prompt=n) for n in (8, 16, 32)]
    ran: list[int] = []

    def run(case: EngineCase) -> Mapping[str, Any]:
        ran.append(case.prompt)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return answer(case)

    with pytest.raises(KeyboardInterrupt):
        run_engine_cases(cases, Store(tmp_path), run=run)
    records = run_engine_cases(cases, Store(tmp_path), run=run)
    assert ran == [8, 16, 16, 32] and len(records) == 12
    run_engine_cases(cases[:1], Store(tmp_path), run=run, fresh=False)
    assert ran[4:] == [8]
    # Rules of another content, or another file under the same name, are another case.
    run_engine_cases([dataclasses.replace(cases[0], repetitions=5)], Store(tmp_path), run=run)
    assert ran[5:] == [8]


def test_a_stored_record_of_another_shape_is_measured_again(tmp_path: Path) -> None:
    case = EngineCase("m.gguf", 1)
    run_engine_cases([case], Store(tmp_path), run=answer)
    (path,) = tmp_path.glob("*/*.jsonl")
    path.write_text(path.read_text().replace('"tokens_per_s":', '"tokens_per_s":"fast","t":'))
    assert all("fast" not in str(r.extra) for r in run_engine_cases([case], Store(tmp_path), run=answer))


def test_a_case_that_fails_is_a_record(tmp_path: Path) -> None:
    cases = [EngineCase(name, 1) for name in ("a.gguf", "b.gguf", "c.gguf")]
    says = {
        "a.gguf": {"failed": "OverBudget", "found": "does not fit"}, "b.gguf": {"failed": "wrong", "found": "x ran"},
        "c.gguf": {"failed": "crashed", "found": "signal SIGKILL"},
    }  # fmt: skip
    records = run_engine_cases(cases, Store(tmp_path), run=lambda case: says[case.model])
    assert [record.status for record in records] == ["unsupported", "wrong", "crashed"]
    assert all(record.op == "engine" and record.median is None for record in records)
    ran: list[EngineCase] = []
    run_engine_cases(cases, Store(tmp_path), run=lambda case: ran.append(case) or answer(case))  # type: ignore[func-returns-value]
    assert ran == cases


def test_a_process_of_its_own(model: Path) -> None:
    case = EngineCase(str(model), 1, prompt=12, depth=4, generate=5, batch=2, chunk=8, tokens="text", repetitions=2)
    said = in_a_process(case)
    assert len(said["prefill_seconds"]) == 2 and len(said["decode_seconds"]) == 10
    assert said["peak_rss_bytes"] > 10 << 20 and said["chunk"] == 8
    assert set(said["realised"]) == {"prefill", "decode"}
    assert min(said["load_seconds"], said["first_run_seconds"], *said["decode_seconds"]) > 0
    gone = in_a_process(dataclasses.replace(case, model=str(model.with_name("none.gguf"))))
    assert gone["failed"] == "UserError" and "no such file" in gone["found"]
    assert in_a_process(case, seconds=0.01)["failed"] == "timeout"


def test_what_the_tokens_are(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sequence has its own tokens: depth, prompt and generation in one stream."""
    fed: dict[int, list[int]] = {}

    class Spy:
        def __init__(self, session: Any) -> None:
            self._session = session

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

        def prefill(self, tokens: Any, sequence: int = 0) -> Any:
            fed.setdefault(sequence, []).extend(tokens)
            return self._session.prefill(tokens, sequence)

        def decode_batch(self, tokens: Any, sequences: Any) -> Any:
            for token, sequence in zip(tokens, sequences, strict=True):
                fed[sequence].append(token)
            return self._session.decode_batch(tokens, sequences)

    monkeypatch.setattr("kbench.suites.engine_worker.load_model", lambda *a, **k: Spy(load_model(*a, **k)))
    case = EngineCase(str(model), 1, prompt=6, depth=3, generate=4, batch=2, tokens="text", repetitions=1)
    said = run_case(case)
    session = load_model(model)
    ids = session.tokenizer.encode(english())
    first_run = case.depth + case.prompt + 1
    for sequence in (0, 1):
        begin = sequence * case.context
        assert fed[sequence][first_run:] == ids[begin : begin + case.context]
    # What a step reads: all weights once, both caches.
    calls = lower(describe_gguf(open_gguf(model)), {}, Phase.DECODE, 1, 11, resolve=lambda problem, device: "reference")
    cached = sum(work(call.problem).cache_bytes for call in calls)
    weights = sum(work(call.problem).weight_bytes for call in calls if call.op != "embedding")
    embedding = sum(work(call.problem).weight_bytes for call in calls if call.op == "embedding")
    assert said["decode_bytes"] == pytest.approx(weights + 2 * embedding + 2 * cached)


def test_a_silent_fallback_is_found(model: Path, tiny_gguf: Path) -> None:
    session = load_model(model, default=Placement(generate_op="torch", prefill_op=AUTO), context=16)
    assert fallbacks(session) == []
    assert any("torch" in name for name in realised(session)["decode"])
    moved = {name: Placement(generate_op="reference") for name in ("lm_head",)}
    session.report = dataclasses.replace(session.report, assignment=moved)
    found = fallbacks(session)
    assert replaced(session) == []
    assert any(text.startswith("lm_head (decode): reference on cpu was asked for, torch on cpu ran") for text in found)
    # What triton has no kernel for, rows of float32, is told, and no fallback; rows that it could read are one.
    placed = {"model.embed_tokens": Placement(generate_op="triton")}
    session.report = dataclasses.replace(session.report, assignment=placed)
    assert replaced(session) == [] and any("embed_tokens" in text for text in fallbacks(session))
    session = load_model(tiny_gguf, default=Placement(generate_op="torch", prefill_op=AUTO), context=16)
    session.report = dataclasses.replace(session.report, assignment=placed)
    assert replaced(session) == ["triton has no embedding: torch ran"]
    assert not any("embed_tokens" in text for text in fallbacks(session))


@pytest.mark.parametrize("name", ["engine", "moe", "mla", "ops-gpu", "seed-claims"])
def test_the_suites_that_come_with_it(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name and suite.description
    assert engine_cases(suite, "m.gguf") or expand(suite) or suite.claims


def test_english_is_text_of_some_20_kb() -> None:
    assert 15_000 < len(english()) < 25_000 and english().isascii()
