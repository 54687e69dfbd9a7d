"""`kbench bench` as a user meets it: what it lists, measures, prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import KbenchError
from kbench.model import synthesize
from kbench.results import Store

SUITE = """suite: 1
name: mixed
threads: 1
implementations: reference
ops:
  silu_mul:
  - {n: 32, tokens: 1, tags: quick}
engine:
- {prompt: 8, generate: [0, 3], repetitions: 1, tags: whole}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench_verb") / "tiny.gguf"
    synthesize(make_tiny("llama", "Q8_0", vocab=1100), path)
    return path


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "results"


def bench(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and stdout, or the message of an error."""
    result = CliRunner().invoke(build_app(), ["bench", *map(str, arguments)])
    if isinstance(result.exception, KbenchError):
        return result.exception.exit_code, result.exception.message
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_operations_and_models_in_one_suite(model: Path, tmp_path: Path, results: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(SUITE)
    code, text = bench(path, "--model", model, "--list")
    assert code == 0 and [line.partition("(")[0] for line in text.splitlines()] == ["silu_mul", "engine", "engine"]
    assert bench(path, "--model", model, "--list", "--tag", "quick")[1].count("\n") == 1
    assert bench(path, "--model", model, "--list", "--filter", "generate=3")[1].count("\n") == 1
    assert bench(path, "--tag", "none")[0] == 2
    code, text = bench(path, "--model", model, "--json")
    said = json.loads(text)
    assert code == 0 and said["schema"] == "kbench.bench/1" and len(said["cases"]) == 1
    assert [row["measured"] for row in said["engine"]] == ["load", "first_run", "prefill"] * 1 + [
        "load", "first_run", "prefill", "decode",
    ]  # fmt: skip
    assert said["engine"][-1]["percentiles"]["p50"] == {"seconds": None, "samples": 3, "samples_needed": 6}
    assert said["engine"][0]["peak_rss_bytes"] > 0 and said["engine"][0]["peak_vram_bytes"] is None
    assert len(list(Store(results).read())) == 8
    code, text = bench(path, "--model", model)  # from the records
    assert code == 0 and len(list(Store(results).read())) == 8
    assert "to the first token" in text and "p50 takes 6 samples, there are 3" in text and "peak RSS" in text


def test_a_shape_that_cannot_be_is_a_record_and_not_the_end(tmp_path: Path) -> None:
    suite = tmp_path / "s.yaml"
    ops = "{linear: {quant: Q4_K, n: 16, k: [256, 257], tokens: 1}}"
    suite.write_text(f"suite: 1\nthreads: 1\nimplementations: reference\nops: {ops}\n")
    code, text = bench(suite, "--json")
    good, bad = json.loads(text)["cases"]
    assert code == 0 and good["status"] == "ok" and good["flops"] > 0
    assert bad["status"] == "unsupported" and "no multiple" in bad["reason"] and bad["flops"] is None
    assert "unsupported" in bench(suite)[1]


def test_a_suite_that_excludes_all_is_refused(tmp_path: Path) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text('suite: 1\nops: {add: {d: 8, tokens: 1}}\nexclude: ["*"]\n')
    code, text = bench(suite)
    assert code == 2 and "nothing is left of it" in text


def test_a_file_in_place_of_a_suite_is_the_engine_suite(model: Path) -> None:
    code, text = bench(model, "--list", "--tag", "quick")
    assert code == 0 and len(text.splitlines()) == 2 and all("model=tiny" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("engine",), "engine cases need a model"),
        (("engine", "--model", "none.gguf"), "no such file"),
        (("smoke", "--window", "64"), "--window: a suite of operations does not take it"),
        (("smoke", "--threads", "1"), "--threads is for --perplexity or --routing"),
        (("ops-cpu", "--rules", "nosuch.yaml"), "--rules is for a suite of models"),
        (("ops-cpu", "--model", "nosuch.gguf"), "--model is for a suite of models or a suite of claims"),
        (("matmul-ladder", "--with", "F16=x"), "--with: a ladder does not take it"),
        (("matmul-ladder", "--tag", "x"), "--tag: a ladder does not take it"),
        (("seed-claims", "--again"), "--again: a suite of claims does not take it"),
        (("seed-claims", "--with", "F16=x", "--list"), "--with: no model"),
        (("engine", "--model", "m.gguf", "--output", "x"), "--output is for --routing"),
        (("one.gguf", "--model", "two.gguf"), "--model: one.gguf beside it"),
        (("ops-cpu", "--perplexity", "m.gguf"), "SUITE: --perplexity does not take it"),
        (("--routing", "m.gguf", "--perplexity", "m.gguf"), "--perplexity: --routing does not take it"),
        (("--routing", "m.gguf", "--again"), "accepted: --json, --output, --routing, --text, --threads, --tokens"),
        (("seed-claims", "--with", "F16"), "accepted: QUANT=FILE"),
        (("--perplexity", "none.gguf"), "no such file"),
        (("seed-claims", "--filter", "nonsense"), "matches no claim"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], message: str, model: Path) -> None:
    more = ("--model", str(model)) if arguments[-1] == "F16" else ()
    code, text = bench(*arguments, *more)
    assert code == 2 and message in text


def test_rules_that_are_none(model: Path, tmp_path: Path) -> None:
    rules = tmp_path / "r.yaml"
    rules.write_text("kbench: 1\nrules: 3\n")
    code, text = bench(model, "--rules", rules, "--list")
    assert code == 2 and "r.yaml" in text


def test_a_broken_case_ends_with_5(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(SUITE)
    made = {"failed": "wrong", "found": "lm_head: torch was asked for, reference ran"}
    monkeypatch.setattr("kbench.suites.engine_bench.in_a_process", lambda case: made)
    code, text = bench(path, "--model", model)
    assert code == 5 and "2 of 3 cases wrong: lm_head: torch was asked for" in text


def test_perplexity(model: Path, tmp_path: Path, results: Path) -> None:
    text = tmp_path / "story.txt"
    text.write_text("It was a dark and stormy night; the rain fell in torrents. " * 8)
    options = ("--perplexity", model, "--text", text, "--window", "64", "--threads", "1")
    code, printed = bench(*options, "--json")
    said: dict[str, Any] = json.loads(printed)
    assert code == 0 and said["quant"] == "Q8_0" and said["n_tokens"] == said["n_windows"] * 31
    assert said["interval"][0] < said["perplexity"] < said["interval"][1] and "against" not in said
    code, printed = bench(*options, "--against", model)
    assert code == 0 and "ratio      1.0000 [1, 1]" in printed and "same likeliest token 100.0%" in printed
    (first, second) = Store(results).read()
    assert first.key == "perplexity(model=tiny,text=story,window=64,threads=1)" and first.unit == "nats"
    assert second.problem["against"] == "tiny" and len(first.samples) == said["n_windows"]
    assert bench("--perplexity", model, "--text", tmp_path / "none.txt")[0] == 2


def test_claims(model: Path) -> None:
    code, text = bench("seed-claims", "--filter", "intensity", "--json")
    said = json.loads(text)
    assert code == 0 and [claim["verdict"] for claim in said["claims"]] == ["holds", "holds"]
    assert said["files"] == [] and said["claims"][0]["claimed"] == "511.5 to 512.5"
    code, text = bench("seed-claims", "--list")
    assert code == 0 and len(text.splitlines()) == 15
