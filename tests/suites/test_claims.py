"""Claims: what a suite file says, what each check measures or computes, what is said where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from split_files import split_file
from tiny_models import make_tiny

from kbench.core import InvalidEnvironment, UserError
from kbench.measure import Interval, Pairs
from kbench.model import describe_gguf, open_gguf, synthesize
from kbench.report import print_claims
from kbench.results import Record, Store
from kbench.suites import (
    ClaimBench,
    ClaimFiles,
    EngineCase,
    engine_side,
    load_suite,
    parse_suite,
    run_claims,
    run_engine_cases,
    select_claims,
)

GOOD = """suite: 1
name: said
threads: 1
claims:
- claim: experts have one of 0.075
  source: a page
  check: intensity
  model: deepseek-v2-chat
  what: experts
  between: [0.07, 0.08]
- claim: Q8_0 is slower
  source: a friend
  check: generation
  of: Q8_0
  over: Q4_0
  tokens: 4
  about: 0.6
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("claims") / "tiny.Q4_0.gguf"
    synthesize(make_tiny("llama", "Q4_0", vocab=1100), path)
    return path


def bench(files: ClaimFiles | None = None) -> ClaimBench:
    return ClaimBench(1, files, lambda gpu: {"rtx4090": 1008e9}[gpu])


def one(check: str, band: str = "at_least: 0.001", **options: Any) -> Any:
    lines = [f"  {name}: {value}" for name, value in options.items()]
    head = GOOD[: GOOD.index("- claim")]
    (claim,) = parse_suite("\n".join((f"{head}- claim: c\n  source: s\n  check: {check}\n  {band}", *lines))).claims
    return claim


def said(record: Record) -> dict[str, Any]:
    assert record.status == "ok", record.reason
    found: dict[str, Any] = record.extra["claim"]
    return found


def made_up(a_over_b: float) -> Callable[..., Pairs]:
    def pairs(a: Callable[[], object], b: Callable[[], object], **_: Any) -> Pairs:
        a(), b()
        return Pairs((0.01 * a_over_b,) * 12, (0.01,) * 12)

    return pairs


def test_what_is_read() -> None:
    suite = parse_suite(GOOD)
    first, second = suite.claims
    assert first.options == {"model": "deepseek-v2-chat", "what": "experts"} and first.band.text == "0.07 to 0.08"
    assert second.options == {"of": "Q8_0", "over": "Q4_0", "phase": "decode", "tokens": 4}
    assert (second.band.low, second.band.high) == (pytest.approx(0.4), pytest.approx(0.8))
    assert first.band.verdict(Interval(0.075, 0.075, 1)) == "holds"
    assert first.band.verdict(Interval(0.06, 0.075, 1)) == "not distinguishable"
    assert first.band.verdict(Interval(0.09, 0.1, 1)) == "does not hold here: more"
    assert select_claims(suite.claims, "slower") == (second,) and select_claims(suite.claims, "intensity") == (first,)
    with pytest.raises(UserError, match="accepted: a part or glob of intensity, generation"):
        select_claims(suite.claims, "luck")


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("check: intensity", "check: intensty", 7, "did you mean intensity"),
        ("  what: experts\n", "", 5, "intensity lacks what"),
        ("what: experts", "waht: experts", 9, "did you mean what"),
        ("between: [0.07, 0.08]", "between: [0.08, 0.07]", 5, "between is [0.08, 0.07]"),
        ("between: [0.07, 0.08]", "between: 0.07", 5, "between is 0.07"),
        ("  between: [0.07, 0.08]\n", "", 5, "an incomplete claim"),
        ("about: 0.6", "about: 0.6\n  at_least: 2", 11, "an incomplete claim"),
        ("about: 0.6", "about: -1", 11, "about is -1"),
        ("tokens: 4", "tokens: 0", 16, "tokens is 0"),
        ("tokens: 4", "tokens: four", 16, "tokens is 'four'"),
        ("source: a page", "source: ''", 5, "source is ''"),
        ("threads: 1", "threads: [1, 2]", 3, "2 thread counts"),
        ("threads: 1", "ops: {}", 3, "ops beside a claims"),
    ],
)
def test_mistakes_are_located(old: str, new: str, line: int, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        parse_suite(GOOD.replace(old, new, 1), "s.yaml")
    assert caught.value.where == f"s.yaml:{line}" and message in caught.value.message


def test_what_is_computed_is_what_was_published() -> None:
    """MLA 512, MoE 0.075, 20.7 GB and 136 GB: the shipped suite's own checks hold on every machine."""
    shipped = [c for c in load_suite("seed-claims").claims if c.check in ("intensity", "memory")]
    records = run_claims(shipped, bench(), None)
    assert [said(r)["verdict"] for r in records] == ["holds"] * 4
    assert [said(r)["measured"] for r in records] == pytest.approx([512, 0.075, 20.7, 135], rel=0.01)
    assert all(r.source == "modelled" and said(r)["modelled"] for r in records)


def test_pairs_of_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbench.suites import run_ladder

    def ladder(rungs: Any, threads: int, store: Any) -> Any:
        return run_ladder(rungs, threads, store, pairs=made_up(4.0))

    monkeypatch.setattr("kbench.suites.claims.run_ladder", ladder)
    problem = '"linear(quant=Q8_0,n=32,k=64,tokens=1)"'
    record = run_claims(
        [one("implementations", "at_least: 3", problem=problem, of="torch", over="reference")], bench(), None
    )[0]
    assert (said(record)["measured"], said(record)["verdict"]) == (4.0, "holds") and len(record.samples) == 12


def test_what_needs_a_gpu_is_no_number() -> None:
    import torch

    claims = [c for c in load_suite("seed-claims").claims if c.options.get("device") == "cuda:0"]
    (record,) = run_claims(claims, bench(), None)
    assert record.status == "unsupported" and not record.samples and "measured" not in record.extra["claim"]
    assert torch.cuda.is_available() or "no CUDA GPU is here: marlin needs" in record.reason


def test_where_a_gpu_is_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, a process each side: their times mean nothing, the rest is what a GPU would be asked."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("kbench.suites.claims.has_gpu", lambda: True)
    monkeypatch.setattr("kbench.suites.gpu.has_gpu", lambda: True)
    monkeypatch.setattr("kbench.measure.Guard.bad", lambda self: ())
    problem = '"linear(quant=Q4_0,n=32,k=64,tokens=1)"'
    claims = [
        one("implementations", problem=problem, of="torch", over="torch", device='"cuda:0"'),
        one("implementations", problem=problem, of="cpu.scalar", over="torch", device='"cuda:0"'),
        one("implementations", problem=problem, of="torch", over="torch", device='"cuda:1"'),
    ]
    first, second, third = run_claims(claims, bench(), None)
    assert said(first)["measured"] > 0 and len(first.samples) >= 12
    assert (second.status, third.status) == ("unsupported", "unsupported")
    assert "cpu.scalar keeps no tensors on a GPU" in second.reason and "CUDA_VISIBLE_DEVICES" in third.reason


def test_a_model_is_measured_in_two_quantizations(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("kbench.suites.claims.measure_pairs", made_up(0.5))
    files = ClaimFiles(model)
    records = run_claims(
        [
            one("generation", of="Q8_0", over="Q4_0", tokens=3),
            one("generation", of="Q8_0", over="Q4_0", tokens=3, phase="prefill"),
            one("prompt", tokens=5),
        ],
        bench(files),
        Store(tmp_path / "results"),
    )
    # A over B is 0.5: the second of the pair, Q8_0, runs at half the speed.
    assert [said(r)["measured"] for r in records] == [0.5] * 3
    (made,) = (tmp_path / "kbench").iterdir()
    assert describe_gguf(open_gguf(made)).quant == "Q8_0" and files.path("Q8_0") == made
    assert files.path("Q4_0") == model and len(files.made) == 1 and "made from tiny.Q4_0.gguf (Q4_0)" in files.made[0]
    beside = model.with_name("tiny.F16.gguf")
    beside.write_bytes(b"")
    assert files.path("F16") == beside and ClaimFiles(model, {"F16": made}).path("F16") == made
    beside.unlink()
    with pytest.raises(UserError, match="--with Q4_K_M=FILE"):
        files.path("Q4_K_M")
    assert len(list(Store(tmp_path / "results").read())) == 3


def test_perplexity_of_two_files(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("kbench.suites.claims.WINDOW", 64)
    record = run_claims([one("perplexity", of="Q4_0", over="F16", tokens=128)], bench(ClaimFiles(model)), None)[0]
    # F16 holds just what Q4_0 dequantises to: the two differ by rounding alone.
    assert said(record)["measured"] == pytest.approx(1, abs=0.02) and said(record)["low"] < said(record)["high"]


def test_engines_share_one_comparison(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kbench.measure import Plan, Side, judge
    from kbench.suites import Outcome

    calls: list[Any] = []
    judged = judge([-0.1] * 12, Plan())

    def compare(path: Path, sides: Any, store: Any, **options: Any) -> list[Outcome]:
        calls.append([side.name for side in sides])
        return [
            Outcome(phase, "kbench", "llama.cpp", 1, judgement=judged, a_samples=(1.0,), b_samples=(ratio,))
            for phase, ratio in (("prefill", 2.0), ("decode", 3.0))
        ]

    monkeypatch.setattr("kbench.suites.claims.compare_engines", compare)
    monkeypatch.setattr("kbench.suites.claims.engine_sides", lambda names, *_: [Side(name, []) for name in names])
    pair = {"of": "kbench", "over": "llama.cpp"}
    records = run_claims(
        [one("engines", **pair), one("engines", **pair, phase="prefill")], bench(ClaimFiles(model)), None
    )
    assert [record.samples for record in records] == [(3.0,), (2.0,)] and calls == [["kbench", "llama.cpp"]]

    def missing(names: Any, *_: Any) -> Any:
        raise InvalidEnvironment("package llama_cpp is not installed", todo="pip install llama-cpp-python")

    monkeypatch.setattr("kbench.suites.claims.engine_sides", missing)
    record = run_claims([one("engines", **pair)], bench(ClaimFiles(model)), None)[0]
    assert record.status == "unsupported" and "pip install llama-cpp-python" in record.reason


def test_without_a_model_and_with_a_broken_check(monkeypatch: pytest.MonkeyPatch) -> None:
    record = run_claims([one("prompt")], bench(), None)[0]
    assert record.status == "unsupported" and "--model" in record.reason
    monkeypatch.setattr("kbench.suites.claims.embedded", lambda name: 1 / 0)
    records = run_claims(parse_suite(GOOD).claims, bench(), None)
    assert [record.status for record in records] == ["crashed", "unsupported"]


def test_the_gap_between_memories_is_part_measured() -> None:
    record = run_claims([one("bandwidth", gpu="rtx4090")], bench(), None)[0]
    if record.status == "ok":  # where the native module is built
        assert (
            said(record)["measured"] > 0.5
            and said(record)["modelled"]
            and "1008 GB/s by its data sheet" in said(record)["note"]
        )
    assert run_claims([one("bandwidth", gpu="none")], bench(), None)[0].status in ("crashed", "unsupported")


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    records = run_claims(parse_suite(GOOD).claims, bench(), None)
    console = Console(width=140, no_color=True, highlight=False)
    print_claims(console, records, lambda text: text)
    text = capsys.readouterr().out
    assert "experts have one of 0.075 [1]" in text and "0.075*" in text and "holds" in text
    assert "unsupported: needs a model" in text and "[2] a friend" in text and "* computed" in text


def test_a_model_in_parts_is_known_by_all_of_them(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parts = split_file(model, 10, tmp_path / "tiny.Q4_0.gguf")
    n_bytes = sum(part.stat().st_size for part in parts)
    made = ClaimFiles(parts[1]).path("Q8_0")
    assert made.name == f"tiny.Q4_0.{n_bytes}.Q8_0.gguf"
    assert list(open_gguf(made).tensors) == list(open_gguf(model).tensors)
    case = EngineCase(str(parts[1]), 1)
    assert case.params["model"] == "tiny.Q4_0"
    (record,) = run_engine_cases([case], None, run=lambda case: {"failed": "timeout", "found": ""})
    assert record.extra["engine"]["model_bytes"] == n_bytes
    assert engine_side("kbench", parts[1], "kbench", 1, 32).n_bytes == (300 << 20) + round(1.06 * n_bytes)
