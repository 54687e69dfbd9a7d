"""`kbench rules export` as a user types it: a whole command, with what it cannot say in comments."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
from pathlib import Path

import pytest
from split_files import split_file
from tiny_models import make_tiny
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import UserError
from kbench.model import synthesize
from kbench.rules import TOOLS

FILE = Path(__file__).parents[2] / "rules" / "deepseek-v2-lite-chat.1gpu.yaml"
MODEL = ("--model", "deepseek-v2-lite-chat")


def export(*arguments: object) -> str:
    result = CliRunner().invoke(build_app(), ["rules", "export", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def words(script: str) -> list[str]:
    return shlex.split(script.replace("\\\n", ""), comments=True)  # which shlex, unlike a shell, would keep


def test_it_speaks_the_other_tools_language() -> None:
    text = export(FILE, *MODEL, "--to", "llama.cpp")
    assert text.startswith("# llama.cpp: options as of ")
    assert words(text)[:6] == ["llama-server", "-m", "DeepSeek-V2-Lite-Chat-Q4_K_M.gguf", "-ngl", "28", "-dev"]
    assert ["-c", "4096"] in [words(text)[i : i + 2] for i in range(40)]
    text = export(FILE, *MODEL, "--to", "ktransformers")
    assert "class: ktransformers.operators.experts.KTransformersExperts\n" in text
    assert "# python -m ktransformers.local_chat" in text and "--optimize_config_path ktransformers.yaml" in text
    text = export(FILE, *MODEL, "--to", "sglang-kt", "--checkpoint", "/models/v2")
    assert words(text)[:5] == ["python", "-m", "sglang.launch_server", "--model-path", "/models/v2"]
    with pytest.raises(UserError, match=r"unknown tool 'lama\.cpp'"):
        export(FILE, *MODEL, "--to", "lama.cpp")


def test_what_the_rules_were_made_for_is_what_runs(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    rule = "- match: {name: '^model\\.layers\\.'}\n  replace: {kwargs: {generate_device: cuda, threads: 6}}\n"
    head = "kbench: 1\nprovenance: {workload: {%s}}\nrules:\n"
    path.write_text(head % "context: 2048, batch: 3, chunk: 128, kv: q8_0" + rule)
    arguments = words(export(path, *MODEL, "--to", "llama.cpp"))
    pairs = list(itertools.pairwise(arguments))
    for pair in (("-c", "6144"), ("-np", "3"), ("-ub", "128"), ("-ctk", "q8_0")):
        assert pair in pairs
    more = ("--context", "512", "--batch", "1", "--chunk", "64", "--kv", "bf16")
    arguments = words(export(path, *MODEL, "--to", "ik_llama.cpp", *more))
    pairs = list(itertools.pairwise(arguments))
    for pair in (("-c", "512"), ("-np", "1"), ("-ub", "64"), ("-ctk", "bf16")):
        assert pair in pairs
    path.write_text(head % "context: [1], batch: -4, chunk: x, kv: [f16]" + rule)
    assert "-c 4096" in export(path, *MODEL, "--to", "llama.cpp")  # a provenance may say anything


def test_json_has_every_word(tmp_path: Path) -> None:
    for tool in TOOLS:
        fields = json.loads(export(FILE, *MODEL, "--to", tool, "--json"))
        assert list(fields) == [
            "schema", "path", "model", "to", "options_of", "program", "arguments", "notes", "file",
        ]  # fmt: skip
        assert fields["schema"] == "kbench.rules.export/1" and (fields["file"] is not None) == (tool == "ktransformers")
        assert fields["notes"] and fields["arguments"]


def test_a_file_that_is_written_runs(tmp_path: Path) -> None:
    """A stand-in for the tool prints the words that reach it."""
    script = tmp_path / "it's run.sh"
    printed = export(FILE, *MODEL, "--to", "llama.cpp", "-o", script)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "llama-server").write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    (bin_folder / "llama-server").chmod(0o755)
    done = subprocess.run(
        ["sh", script], env={"PATH": f"{bin_folder}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:-1] == words(printed)[1:]
    kt = tmp_path / "kt rules.yaml"
    printed = export(FILE, *MODEL, "--to", "ktransformers", "-o", kt)
    assert str(kt) in words(printed) and "class: " not in printed and "class: " in kt.read_text()
    with pytest.raises(UserError, match="a directory"):
        export(FILE, *MODEL, "--to", "llama.cpp", "-o", tmp_path)


@pytest.mark.parametrize("tool", TOOLS)
def test_operators_of_ones_own_are_not_exported(tmp_path: Path, tool: str) -> None:
    path = tmp_path / "r.yaml"
    kwargs = "{prefill_op: mine.Op, generate_device: cuda}"
    text = f"kbench: 1\nrules:\n- match: {{name: 'mlp$'}}\n  replace: {{kwargs: {kwargs}}}\n"
    path.write_text(text)
    arguments = (path, "--model", "deepseek-v2-lite-chat", "--to", tool, "--trust", "mine")
    with pytest.raises(UserError, match=r"mine\.Op replaces model\.layers\.0\.mlp and 26 more modules"):
        export(*arguments)
    path.write_text(text.replace("mine.Op", "torch").replace("mlp$", "self_attn"))
    export(*arguments)


def test_another_host_is_not_exported(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("kbench: 1\nrules:\n- match: {name: 'mlp$'}\n  replace: {kwargs: {generate_device: 'host1/cpu'}}\n")
    with pytest.raises(UserError, match="host1/cpu is another host's"):
        export(path, *MODEL, "--to", "llama.cpp")


def test_what_sglang_cannot_run(tmp_path: Path, tiny_gguf: Path) -> None:
    path = tmp_path / "r.yaml"
    rule = "kbench: 1\nrules:\n- match: {name: 'self_attn'}\n  replace: {kwargs: {generate_device: cuda}}\n"
    path.write_text(rule)
    with pytest.raises(UserError, match="no routed experts"):
        export(path, "--model", tiny_gguf, "--to", "sglang-kt")
    path.write_text(rule.replace("cuda", "cpu"))
    with pytest.raises(UserError, match="everything is on the CPU"):
        export(path, *MODEL, "--to", "sglang-kt")


def test_of_a_split_model_the_first_part_is_named(tmp_path: Path) -> None:
    synthesize(make_tiny("deepseek2"), tmp_path / "m.gguf")
    parts = split_file(tmp_path / "m.gguf", 20)
    text = export(FILE, "--model", parts[1], "--to", "llama.cpp")
    assert words(text)[1:3] == ["-m", str(parts[0])]
