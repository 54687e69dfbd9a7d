"""Every verb's help has an example, and its examples name verbs and options that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from kbench.cli.main import build_app

APP = build_app()


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb and group of verbs, by the words that lead to it."""
    yield words, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, word))


COMMANDS = dict(commands(typer.main.get_command(APP)))


def examples(text: str) -> list[str]:
    """What the help says to type: in bold, or to the end of the line."""
    found = re.findall(r"\[bold\]kbench (.*?)\[/bold\]", text)
    return found + re.findall(r"Example: kbench (.*)", text)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(APP, [*words, "--help"])
    assert result.exit_code == 0 and re.search(r"Examples?:\s+kbench ", result.output), result.output


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_its_examples_can_be_typed(words: tuple[str, ...]) -> None:
    for example in examples(COMMANDS[words].help or ""):
        typed = shlex.split(example)
        named = next(tuple(typed[:n]) for n in (2, 1, 0) if tuple(typed[:n]) in COMMANDS)
        assert named and not hasattr(COMMANDS[named], "commands"), example
        known = {name for param in COMMANDS[named].params for name in (*param.opts, *param.secondary_opts)}
        assert {word for word in typed if word.startswith("-")} <= known, example
