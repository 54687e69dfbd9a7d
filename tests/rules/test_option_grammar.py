"""Option grammars: what other tools take, and that nothing else is ever exported."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import pytest

from kbench.core import CheckBroken, Module
from kbench.model import build_tree, load_descriptor
from kbench.rules import TOOLS, Serving, assign, export, load_rules
from kbench.rules.option_grammar import grammar_names, option_grammar

FILES = sorted((Path(__file__).parents[2] / "rules").glob("*.yaml"))


@cache
def tree_of(model: str) -> Module:
    return build_tree(load_descriptor(model)[0])


def test_there_is_one_for_every_tool_and_it_says_where_it_is_from() -> None:
    assert set(grammar_names()) == set(TOOLS)
    for tool in TOOLS:
        grammar = option_grammar(tool)
        assert grammar.version and grammar.source and grammar.program
        assert all(name.startswith("-") for name in grammar.options)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("-m a.gguf -ngl 3 -ot ^a$=CPU -ot b=CUDA0 -t 4", ""),
        ("-m a.gguf -fmoe", "'-fmoe' is no option"),
        ("-ngl many", "-ngl: 'many' is no integer"),
        ("-t 0", "-t: 0 is less than 1"),
        ("-t 4 --threads 5", "--threads comes twice"),
        ("-ctk q9", "-ctk: 'q9' is none of f32, f16"),
        ("-ot a,b=CPU", "-ot: 'a,b=CPU' is no override"),
        ("-ot a=b=CPU", "-ot: 'a=b=CPU' is no override"),
        ("-ts 1;2", "-ts: '1;2' is no numbers"),
        ("-rtr 1", "'1' is no option"),
        ("-fa", "-fa without a value"),
    ],
)
def test_what_is_not_in_it_is_found(line: str, complaint: str) -> None:
    grammar = option_grammar("ik_llama.cpp")
    found = grammar.complaints(line.split())
    assert (not found) if not complaint else any(complaint in one for one in found), found
    if complaint:
        with pytest.raises(CheckBroken):
            grammar.check(line.split())


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_rule_file_becomes_a_command_that_the_tool_takes(path: Path, tool: str) -> None:
    model = path.stem.removesuffix(".1gpu").removesuffix(".2gpu")
    tree = tree_of(model)
    names = {"model": "/models/it's a model.gguf", "checkpoint": "/models/hf $HOME", "rules_file": "my rules.yaml"}
    serving = Serving(**names, context=16384, sequences=2, chunk=512, kv="q8_0", draft_layers=1)
    found = export(assign(load_rules(path), tree), tree, tool, serving)
    assert option_grammar(tool).complaints(found.arguments) == []
    # What a shell makes of it is what was meant.
    assert tuple(shlex.split(found.command.replace("\\\n", ""))) == (*found.program, *found.arguments)
    assert not any("\n" in line for line in found.comments())
