"""What a report says of cache types, prefill steps, and experts that are brought to a GPU."""

from __future__ import annotations

import json
import shlex
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from made_up_result import bare, made_up
from rich.console import Console

from kbench.report import print_tune_report, write_page
from kbench.report.choices import form_rows, run_options, streaming_lines
from kbench.results import read_tune_result


def with_choices(**streaming: Any) -> dict[str, Any]:
    fields = made_up()
    row = {
        "device": "cuda:0", "label": "A card", "layer_bytes": 2 << 30, "link_seconds": 0.086, "prepare_seconds": 1.5,
        "ready_tokens": 130, "break_even_tokens": 2300, "obstacle": "no kernel for them", "threshold": 0,
        "source": "modelled",
    }  # fmt: skip
    fields["streaming"] = [{**row, **streaming}]
    fields["workload"] |= {"kv": "q8_0", "chunk": 512}
    fields["forms"] = [
        {"kv": "f16", "chunk": 256, "workload_seconds": 22.0},
        {"kv": "f32", "chunk": 256, "workload_seconds": None},
        {"kv": "q8_0", "chunk": 512, "workload_seconds": 20.0},
    ]
    return fields


@pytest.mark.parametrize(
    ("streaming", "words"),
    [
        ({}, ["from 130 tokens on if they lie", "from 2300 tokens on if they are prepared", "no kernel for them"]),
        ({"obstacle": "", "threshold": 2299}, ["rules do so for prompts of more than 2299 tokens"]),
        ({"obstacle": "", "break_even_tokens": None}, ["never if they are prepared", "not make this workload faster"]),
        ({"prepare_seconds": None, "break_even_tokens": None, "ready_tokens": 1}, ["always if they lie ready;"]),
    ],
)
def test_the_break_even_in_words(streaming: dict[str, Any], words: list[str]) -> None:
    (line,) = streaming_lines(with_choices(**streaming))
    assert all(word in line for word in ["modelled", "2 GiB", *words]), line
    if not streaming.get("threshold"):
        assert "do not ask for it" in line


def test_forms_are_told_beside_the_chosen_one() -> None:
    rows = form_rows(with_choices())
    assert [row[-1] for row in rows] == ["", "", "chosen"]
    assert rows[0][2] == "22 s (+10.0 %)" and rows[1][2] == "does not fit"
    assert form_rows(made_up()) == [] and streaming_lines(bare()) == []


def test_the_command_has_what_rules_cannot_say() -> None:
    assert run_options(with_choices()) == " --kv q8_0 --chunk 512"
    assert run_options(made_up()) == ""
    usual = made_up()
    usual["workload"] |= {"kv": "f16", "chunk": 100, "prompt_tokens": 100}  # a prompt in one step
    assert run_options(usual) == ""
    hostile = made_up()
    hostile["workload"] |= {"kv": "f16; rm -rf ~"}
    assert shlex.split(run_options(hostile)) == ["--kv", "f16; rm -rf ~"]


def test_terminal_and_page_say_it(tmp_path: Path) -> None:
    fields = with_choices()
    fields |= {"gpus": {}, "packing": {"seconds": None}, "elapsed_s": 1.0}
    path = tmp_path / "r.tune.json"
    path.write_text(json.dumps(fields))
    assert read_tune_result(path)["streaming"] == fields["streaming"]
    out = StringIO()
    print_tune_report(Console(file=out, width=100), fields)
    write_page(fields, tmp_path / "r.html")
    for text in (out.getvalue(), (tmp_path / "r.html").read_text()):
        for word in ("beats the CPU from 130 tokens on", "tokens of a prefill step", "does not fit", "chunk 512"):
            assert word in text, word
