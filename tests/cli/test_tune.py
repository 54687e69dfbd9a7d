"""`kbench tune` as a user meets it; measuring is replaced by made-up records, everything else is real."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny
from typer.testing import CliRunner

import kbench
from kbench.cli.main import build_app
from kbench.core import KbenchError, work
from kbench.kernels import op_spec
from kbench.model import synthesize
from kbench.results import Record, read_tune_result
from kbench.suites import version_of
from kbench.tuner import SearchSpace
from kbench.tuner.cost_model import Roof

tune_module = importlib.import_module("kbench.tuner.tune")


def _made_up(cells: Iterable[Any], store: object, **_: object) -> list[Record]:
    found = []
    for cell in cells:
        size = work(cell.problem)
        seconds = 2e-6 + max(size.bytes_touched / 3e10, size.flops / 3e11) / cell.threads
        samples = (0.9 * seconds, seconds, 1.1 * seconds)
        found.append(Record.make(cell.problem, cell.implementation, threads=cell.threads, result=samples))
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder to work in, and a machine that measures in no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(tune_module, "run_cells", _made_up)
    monkeypatch.setattr(tune_module, "rehearse", lambda *_, **__: [])
    monkeypatch.setattr(tune_module, "measured_roof", lambda store, threads, again=False: Roof())
    return tmp_path


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(build_app(), ["tune", *arguments])
    if isinstance(result.exception, KbenchError):
        return result.exception
    assert result.exit_code == 0, result.output
    return result


def test_a_config_of_hugging_face_is_planned(quick: Path) -> None:
    config = {
        "model_type": "gpt_oss", "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": 128, "vocab_size": 320, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (quick / "My-Model").mkdir()
    (quick / "My-Model" / "config.json").write_text(json.dumps(config))
    fields = json.loads(run("My-Model/config.json", "--vram", "1G", "--dram", "1G", "--json").stdout)
    assert (fields["model"]["name"], fields["model"]["arch"]) == ("My-Model", "gpt-oss")
    assert {"attention", "moe_experts", "moe_router"} <= {row["op"] for row in fields["ops"]}
    assert fields["rules_path"] == "kbench-rules/my-model.yaml"


def test_the_json_object_and_the_rules(quick: Path) -> None:
    result = run("deepseek-v2-lite-chat", "--vram", "6G", "--dram", "24G", "--json")
    fields = json.loads(result.stdout)
    assert next(iter(fields)) == "schema" and fields["schema"] == "kbench.tune/1"
    assert set(fields["model"]) >= {"name", "arch", "params", "bytes", "quant"}
    sizes = {"vram_bytes": 6 << 30, "dram_bytes": 24 << 30}
    assert fields["budgets"] == {**sizes, "by_device": {"cpu": 24 << 30, "cuda:0": 6 << 30}}
    for memory in fields["placement"].values():
        assert set(memory) >= {"weights_bytes", "kv_bytes", "workspace_bytes", "total_bytes", "budget_bytes"}
        assert memory["total_bytes"] <= memory["budget_bytes"]
    assert set(fields["predicted"]) >= {"decode_tokens_per_s", "prefill_tokens_per_s", "decode_interval"}
    assert fields["measured"] is None and "descriptor" in fields["measured_reason"]
    wanted = {"op", "module", "phase", "problem", "device", "impl", "seconds", "source", "flops", "bytes_touched"}
    wanted |= {"elements_resident", "ai_touched", "ai_resident"}
    assert all(wanted <= set(row) for row in fields["ops"])
    assert fields["solver"]["status"] == "optimal" and fields["elapsed_s"] > 0
    path = quick / fields["rules_path"]
    assert path == quick / "kbench-rules" / "deepseek-v2-lite-chat.yaml"
    assert "modelled" in path.read_text()
    stored = read_tune_result(path)  # what was printed lies beside the rules
    assert stored == fields and stored["rules"] == path.read_text()
    assert {point["vram_bytes"] for point in stored["vram_curve"]} >= {0, 6 << 30, 24 << 30}
    assert all(row["seconds_by_threads"] for row in stored["ops"] if row["device"] == "cpu" and row["op"] != "transfer")
    assert [card["vram_bytes"] >> 30 for card in stored["what_if"]] == [12, 16, 24, 32, 48]
    # Every filling by a rule of thumb is a placement too: none beats the optimum but by what a GiB must be worth.
    thumbs = {row["name"]: row["ratio"] for row in stored["rules_of_thumb"]}
    assert set(stored["presets"]) <= set(thumbs) and all(thumbs[name] > 0.99 for name in stored["presets"])
    checked = CliRunner().invoke(build_app(), ["rules", "check", str(path), "--model", "deepseek-v2-lite-chat"])
    assert checked.exit_code == 0, checked.output
    for tool in ("llama.cpp", "ik_llama.cpp", "sglang-kt", "ktransformers"):
        arguments = ["rules", "export", str(path), "--model", "deepseek-v2-lite-chat", "--to", tool]
        assert CliRunner().invoke(build_app(), arguments).exit_code == 0


def test_the_report_names_what_matters(quick: Path) -> None:
    sizes = ("--vram", "6G", "--dram", "24G")
    text = run("deepseek-v2-lite-chat", *sizes, "-o", "mine.yaml", "--report", "mine.html").stdout
    for word in (
        "DeepSeek-V2-Lite",
        "modelled",
        "routed experts",
        "mla_attention",
        "because",
        "What if the GPU had",
        "Rules of thumb, beside this plan",
        "Placement",
        "mine.yaml",
        "optimal",
    ):
        assert word in text, word
    assert (quick / "mine.yaml").is_file()
    page = (quick / "mine.html").read_text()
    assert "DeepSeek-V2-Lite-Chat" in page and 'id="vram"' in page and len(page) < 1_000_000


def test_too_small_a_budget_is_one_message_and_exit_code_1(quick: Path) -> None:
    error = run("deepseek-v2-lite-chat", "--dram", "2G", "--vram", "0")
    assert isinstance(error, KbenchError) and error.exit_code == 1
    assert "short" in error.message and "--dram" in error.message
    assert not (quick / "kbench-rules").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-model"], "no model"),
        (["deepseek-v2-chta"], "did you mean deepseek-v2-chat"),
        (["missing.gguf"], "missing.gguf"),
        (["--vram", "lots"], "not a size"),
        (["--vram", "21G", "--dram", "136G", "--gpu", "rtx4900"], "did you mean rtx4090"),
        (["--context", "0"], "positive"),
        (["--quant", "Q4_KM"], "did you mean Q4_K_M"),
        (["--objective", "speed"], "accepted: workload, decode"),
        (["--vram", "cpu=3G"], "each GPU once"),
        (["--host", "nowhere.yaml"], "nowhere.yaml"),
        (["--time-budget", "10m"], "add --search"),
        (["--search", "--time-budget", "soon"], "not a duration"),
        (["--search", "--host", "nowhere.yaml"], "search there"),
        (["--context", "512", "--prompt-tokens", "600"], "do not fit a context of 512"),
    ],
)
def test_mistakes_are_told_in_one_message(quick: Path, arguments: list[str], words: str) -> None:
    error = run(*arguments)
    assert isinstance(error, KbenchError) and error.exit_code == 2
    assert words in error.message


def test_a_place_that_cannot_hold_the_rules_is_told_before_measuring(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_module, "run_cells", None)  # measuring would be a TypeError
    error = run("deepseek-v2-lite-chat", "--dram", "24G", "--output", str(quick))
    assert isinstance(error, KbenchError) and error.exit_code == 2 and str(quick) in error.message


def test_the_help_names_every_default(quick: Path) -> None:
    shown = " ".join(run("--help").output.replace("│", " ").split())
    for default in ("what is free", "1024", "256", "searched", "kbench-rules/MODEL.yaml"):
        assert f"Default: {default}." in shown


def test_a_truncated_file_is_one_message(quick: Path) -> None:
    (quick / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0")
    error = run("bad.gguf")
    assert isinstance(error, KbenchError) and error.exit_code == 2 and "bad.gguf" in error.message


def test_no_traceback_reaches_a_user(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kbench", "tune", "no-such-model"]
    # The package under test, however it was found, and not one that happens to be installed.
    env = {**os.environ, "PYTHONPATH": str(Path(kbench.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_busy_machine_is_told(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def warnings(self) -> tuple[str, ...]:
            return ("other processes used 46% of the CPU time",)

    monkeypatch.setattr(tune_module, "Guard", Busy)
    text = run("deepseek-v2-lite-chat", "--vram", "6G", "--dram", "24G").stdout
    assert "while measuring: other processes used 46% of the CPU time" in text


def _found(cells: Iterable[Any], store: Any, limit_seconds: float | None = None, **options: Any) -> list[Record]:
    """Made up and stored: products that threads steal from each other take half as long."""
    found = []
    for cell, record in zip(cells, _made_up(cells, store), strict=True):
        fast = 0.5 if cell.block.get("partition") == "stealing" else 1.0
        kept = {"block": dict(cell.block), "kernel_version": version_of(cell.implementation)}
        made = Record.make(
            cell.problem, cell.implementation, threads=cell.threads, result=[fast * s for s in record.samples],
            op_spec_hash=op_spec(cell.problem.op).hash, extra=kept,
        )  # fmt: skip
        store.append(made, suite="test")
        found.append(made)
    return found


def test_a_search_goes_into_the_rules_and_the_report(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_module, "run_cells", _found)
    monkeypatch.setattr("kbench.tuner.parameter_search.run_cells", _found)
    few = SearchSpace({"partition": ("static", "dynamic", "stealing")}, {"partition": "static"})
    none = SearchSpace({}, {})
    matrix = ("linear", "moe_experts")
    monkeypatch.setattr(
        "kbench.tuner.parameter_search.search_space", lambda problem, name: few if problem.op in matrix else none
    )
    synthesize(make_tiny("qwen3moe", "Q8_0"), quick / "moe.gguf")
    sizes = ("--vram", "0", "--context", "128", "--prompt-tokens", "16", "--gen-tokens", "4")
    plain = json.loads(run("moe.gguf", *sizes, "--no-prove", "--json").stdout)
    assert "search" not in plain
    text = run("moe.gguf", *sizes, "--search", "--report", "page.html").stdout
    assert "Search" in text and "partition=stealing" in text and "measured now" in text
    fields = read_tune_result(quick / "kbench-rules/moe.tune.json")
    choices = fields["search"]["choices"]
    assert choices and all(choice["block"]["partition"] == "stealing" for choice in choices)
    assert "partition: stealing" in fields["rules"] and fields["block_sweeps"]
    assert fields["measured"]["decode_tokens_per_s"] > 0  # it ran under them
    assert fields["planned"]["decode_tokens_per_s"] > 1.1 * plain["predicted"]["decode_tokens_per_s"]
    assert (quick / "results" / fields["host_id"] / "search.sqlite3").exists()
    again = json.loads(run("moe.gguf", *sizes, "--search", "--no-prove", "--json").stdout)
    assert again["search"]["n_measured"] == 0 and again["search"]["choices"] == choices


def test_a_mixture_of_experts_is_run_under_its_rules(quick: Path) -> None:
    """The proof: a real file, loaded and timed by the engine; only what the plan was made from is made up."""
    synthesize(make_tiny("deepseek2", "Q8_0"), quick / "moe.gguf")
    sizes = ("--context", "128", "--prompt-tokens", "16", "--gen-tokens", "4")
    fields = json.loads(run("moe.gguf", "--vram", "0", *sizes, "--json").stdout)
    assert fields["measured_reason"] is None and fields["check"]["run"] == "now"
    assert all(fields["measured"][f"{phase}_tokens_per_s"] > 0 for phase in ("decode", "prefill"))
    assert set(fields["error"]) == {"decode", "prefill"}
    assert "in turns with the run; prices that said" in " ".join(run("moe.gguf", "--vram", "0", *sizes).stdout.split())
