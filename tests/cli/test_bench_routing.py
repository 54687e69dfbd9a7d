"""`kbench bench --routing` and `kbench tune --routing` as a user meets them, on a tiny mixture of experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_tune import quick as quick
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import KbenchError
from kbench.results import read_routing

TEXT = "In 1492, Columbus sailed the ocean blue; what happened next came as a surprise. " * 2

Models = dict[str, tuple[Path, Any]]


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(build_app(), list(arguments))
    if isinstance(result.exception, KbenchError):
        return result.exception
    assert result.exit_code == 0, result.output
    return result


def test_a_text_is_read_counted_and_planned_with(quick: Path, tiny_models: Models) -> None:
    model = str(tiny_models["mixtral"][0])
    (quick / "text.txt").write_text(TEXT)
    fields = json.loads(run("bench", "--routing", model, "--text", "text.txt", "--tokens", "140", "--json").stdout)
    stored = read_routing(Path(fields["path"]))
    assert Path(fields["path"]).is_relative_to(quick / "results")
    assert fields["routing"]["key"] == stored.key and "text=sha256:" in stored.key and stored.tokens == 140
    assert {str(layer): list(counts) for layer, counts in stored.visits.items()} == fields["routing"]["layers"]
    assert all(sum(counts) == 140 * 3 for counts in stored.visits.values()) and len(stored.visits) == 3
    plan = run("tune", model, "--routing", fields["path"], "--context", "96", "--no-prove", "--dram", "2G", "--json")
    assert json.loads(plan.stdout)["workload"]["routing"] == stored.key
    other = run("tune", "deepseek-v2-lite-chat", "--routing", fields["path"], "--vram", "0", "--dram", "32G")
    assert "26 layers of 64 experts" in other.message


def test_without_a_text_tokens_are_random_and_say_so(quick: Path, tiny_models: Models) -> None:
    printed = run("bench", "--routing", str(tiny_models["mixtral"][0]), "--tokens", "40", "-o", "r.json")
    assert "text=random:1,tokens=40" in read_routing(quick / "r.json").key
    assert "hottest 50%" in printed.stdout and "of 7" in printed.stdout


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--text", "missing.txt"], "cannot be read"),
        (["--text", "empty.txt"], "no text"),
        (["--tokens", "0"], "--tokens"),
        (["-o", "."], "a directory"),
    ],
)
def test_what_is_refused(quick: Path, tiny_models: Models, more: list[str], complaint: str) -> None:
    (quick / "empty.txt").write_text("\n")
    assert complaint in run("bench", "--routing", str(tiny_models["mixtral"][0]), *more).message


def test_a_dense_model_has_no_routing(quick: Path, tiny_models: Models) -> None:
    assert "no routed experts" in run("bench", "--routing", str(tiny_models["llama"][0])).message
    assert "--tokens is for --routing" in run("bench", "--tokens", "9").message
