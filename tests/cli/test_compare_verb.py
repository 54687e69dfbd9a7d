"""`kbench compare` as a user meets it: what is refused, tables, JSON, exit codes; sides are made up but for engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import KbenchError
from kbench.kernels import YES, Support, peer_implementation
from kbench.measure import Plan, judge
from kbench.model import synthesize
from kbench.suites import Contest, Outcome


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KBENCH_RESULTS", str(tmp_path / "results"))


def run(*arguments: str) -> Any:
    """The output, or the error."""
    result = CliRunner().invoke(build_app(), ["compare", *arguments])
    if isinstance(result.exception, KbenchError):
        return result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def made_up(monkeypatch: pytest.MonkeyPatch, logs: Sequence[float], status: Any = "ok") -> None:
    """Every comparison comes out with these logarithms of the ratio."""

    def compare_ops(wanted: Sequence[Contest], store: object, plan: Plan, **_: object) -> list[Outcome]:
        if status != "ok":
            return [Outcome(c.key, c.a, c.b, c.threads, status, "torch: 1 instead of 2") for c in wanted]
        judgement = judge(logs, plan)
        n = len(logs)
        return [
            Outcome(c.key, c.a, c.b, c.threads, "ok", "", judgement, (0.01,) * n, (0.02,) * n, {"margin": plan.margin})
            for c in wanted
        ]

    monkeypatch.setattr("kbench.suites.compare_ops", compare_ops)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("kbench", "torch"), 2, "kbench is an engine, torch is an implementation"),
        (("kbench", "llama.cpp"), 2, "--model: engines need a model"),
        (("a.yaml", "b.yaml", "--model", "none.gguf"), 2, "none.gguf"),
        (("torch", "tourch"), 2, "unknown name 'tourch'"),
        (("kbnech", "llama.cpp"), 2, "accepted: engines: kbench, llama.cpp"),
        (("kbnech", "llama.cpp"), 2, "did you mean kbench?"),
        (("ktransformer", "kbench"), 2, "did you mean ktransformers?"),
        (("llama.cpp", "ktransformers"), 2, "accepted: kbench ktransformers"),
        (("kbench:planes=1", "kt"), 2, "kbench:planes=1 and kt have no part in common"),
        (("torch", "reference", "--gen-tokens", "4"), 2, "--gen-tokens: a comparison of implementations does not"),
        (("torch", "reference", "--model", "kimi-k2", "--suite", "moe"), 2, "--suite and --model: moe beside kimi-k2"),
        (("kbench", "llama.cpp", "--filter", "x"), 2, "--filter: a comparison of engines does not take it"),
        (("kbench", "llama.cpp", "--suite", "x"), 2, "--suite is for a comparison of implementations"),
        (("a.yaml", "b.yaml", "--filter", "x"), 2, "--filter: a comparison of rules does not take it"),
        (("a.jsonl", "b.jsonl", "--model", "x"), 2, "--model: a comparison of recorded runs does not take it"),
        (("a.jsonl", "b.jsonl", "--threads", "1"), 2, "--threads: a comparison of recorded runs"),
        (("a.jsonl", "b.jsonl", "--suite", "x"), 2, "--suite: a comparison of recorded runs"),
        (("a.jsonl", "b.jsonl", "--max-seconds", "1"), 2, "--max-seconds: a comparison of recorded runs"),
        (("--rev", "A", "--rev", "B", "--threads", "1"), 2, "--threads: a comparison of revisions does not take it"),
        (
            ("--rev", "A", "--rev", "B", "--model", "m.gguf", "--suite", "x"),
            2,
            "--suite: a comparison of revisions with",
        ),
        (("torch", "reference", "--margin", "-1"), 2, "--margin"),
        (("torch", "reference", "--filter", "nothing"), 2, "matches no case"),
        (("torch", "reference", "--model", "no-such-model"), 2, "no-such-model"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], code: int, words: str) -> None:
    error = run(*arguments)
    assert error.exit_code == code and words in error.message


SPREAD = [0.001 * i for i in range(-6, 6)]


def test_two_implementations_as_a_table_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, [value + 0.7 for value in SPREAD])
    text = run("cpu.scalar", "torch", "--filter", "linear(quant=Q4_K")
    assert "cpu.scalar is faster" in text and "2.01×" in text and "geometric mean of 3" in text
    fields = json.loads(run("cpu.scalar", "torch", "--filter", "linear(quant=Q4_K", "--json"))
    assert next(iter(fields)) == "schema" and fields["schema"] == "kbench.compare/1"
    assert {case["verdict"] for case in fields["cases"]} == {"REGRESSED"} and len(fields["cases"]) == 3
    assert fields["summary"][0]["ratio"] == pytest.approx(2.01, abs=0.01)
    assert fields["cases"][0]["a_seconds"] == 0.01 and fields["cases"][0]["n_pairs"] == 12


@pytest.mark.parametrize("names", [("kbench", "ktransformers"), ("ktransformers", "kbench"), ("kbench", "kt")])
def test_kbench_and_ktransformers_are_compared_as_routed_experts(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With kt-kernel as if it were installed; the suite's matrix products are nothing that it runs."""
    made_up(monkeypatch, [value + 0.7 for value in SPREAD])
    monkeypatch.setattr(peer_implementation("kt"), "runnable", lambda: YES)
    fields = json.loads(run(*names, "--json"))
    assert fields["kind"] == "implementations" and (fields["a"], fields["b"]) == names
    assert fields["cases"] and all(case["case"].startswith("moe_experts(") for case in fields["cases"])
    sides = ("cpu.", "kt") if names[0] == "kbench" else ("kt", "cpu.")
    assert all(case["a"].startswith(sides[0]) and case["b"].startswith(sides[1]) for case in fields["cases"])
    assert "layer of routed experts" in fields["notes"][0]
    error = run(*names, "--filter", "linear(")
    assert error.exit_code == 2 and "matches no case" in error.message


def test_ktransformers_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        peer_implementation("kt"),
        "runnable",
        lambda: Support(False, "kt-kernel is not installed (pip install --no-deps kt-kernel)"),
    )
    error = run("kbench", "ktransformers")
    assert error.exit_code == 4 and "pip install --no-deps kt-kernel" in error.message


def test_a_mean_is_of_several_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, [value + 0.7 for value in SPREAD])
    assert json.loads(run("cpu.scalar", "torch", "--filter", "linear(quant=Q4_K,n=4096", "--json"))["summary"] == []


def test_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = [value + 0.7 for value in SPREAD]
    arguments = ("cpu.scalar", "torch", "--filter", "linear(quant=Q4_K,n=4096")
    made_up(monkeypatch, slower)
    assert isinstance(run(*arguments), str)
    assert run(*arguments, "--fail-on-regression").exit_code == 1
    made_up(monkeypatch, [-value for value in slower])
    assert isinstance(run(*arguments, "--fail-on-regression"), str)
    made_up(monkeypatch, [value + 0.03 for value in SPREAD])
    assert run(*arguments).exit_code == 3
    made_up(monkeypatch, slower, "wrong")
    error = run(*arguments)
    assert error.exit_code == 5 and "1 instead of 2" in error.message
    made_up(monkeypatch, slower, "unsupported")
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_config_json_and_its_folder_are_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    config = {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 1792,
        "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "vocab_size": 320, "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    made_up(monkeypatch, [value + 0.7 for value in SPREAD])
    fields = json.loads(run("cpu.scalar", "torch", "--model", str(tmp_path / name), "--json"))
    assert any("n=1792,k=1024" in case["case"] for case in fields["cases"])


def test_problems_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, [value + 0.7 for value in SPREAD])
    fields = json.loads(run("cpu.scalar", "torch", "--model", "deepseek-v2-lite-chat", "--json"))
    ops = {case["case"].partition("(")[0] for case in fields["cases"]}
    assert {"linear", "moe_experts", "mla_attention"} <= ops


def rule(words: str) -> str:
    replace = f"{{class: Linear, kwargs: {{{words}}}}}"
    return f"kbench: 1\nrules:\n- match: {{name: ^lm_head$}}\n  replace: {replace}\n"


@pytest.mark.parametrize(
    ("words", "code", "found"),
    [
        ("generate_device: cuda:0", 4, "cuda:0"),
        ("generate_op: torch, block: {activation_planes: 1}", 2, "activation_planes"),  # known when the model is
    ],
)
def test_what_stops_a_side_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, code: int, found: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    synthesize(make_tiny(), tmp_path / "tiny.gguf")
    (tmp_path / "a.yaml").write_text(rule("generate_op: cpu.scalar"))
    (tmp_path / "b.yaml").write_text(rule(words))
    error = run(*(str(tmp_path / f"{name}.yaml") for name in "ab"), "--model", str(tmp_path / "tiny.gguf"))
    assert error.exit_code == code and error.where.startswith("b.yaml") and found in error.message


def test_two_rule_files_end_to_end(tmp_path: Path) -> None:
    """Real processes with a tiny model: prefill and decode, a row each; the verdict is the machine's affair."""
    model = tmp_path / "tiny.gguf"
    synthesize(make_tiny(), model)
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(rule("generate_op: cpu.scalar"))
    sizes = ("--prompt-tokens", "16", "--gen-tokens", "2", "--max-seconds", "0.1", "--threads", "1")
    result = CliRunner().invoke(
        build_app(),
        ["compare", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"), "--model", str(model), "--json", *sizes],
    )
    fields = json.loads(result.stdout)
    assert fields["kind"] == "rules" and fields["summary"] == []  # both are of the same pairs
    assert [case["case"].partition("(")[0] for case in fields["cases"]] == ["prefill", "decode"]
    assert all(case["logits_apart"] < 1e-6 and case["n_pairs"] >= 8 for case in fields["cases"])


def test_files_for_other_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made_up(monkeypatch, [value + 0.7 for value in SPREAD])
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    run("cpu.scalar", "torch", "--filter", "linear(quant=Q4_K", "-o", str(page), "-o", str(table))
    assert "<h1>Comparison" in page.read_text() and "12 pairs in the order taken" in page.read_text()
    assert table.read_text().count("REGRESSED") == 3
    fields = json.loads(run("cpu.scalar", "torch", "--filter", "linear(quant=Q4_K", "--format", "pytest-benchmark"))
    assert [one["stats"]["rounds"] for one in fields["benchmarks"]] == [12] * 3
    assert run("cpu.scalar", "torch", "--format", "no-such").exit_code == 2
