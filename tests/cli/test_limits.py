"""Numbers of threads and seconds: every verb that takes some says what it accepts, before anything is measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import UserError, allowed_cpus
from kbench.engine import parse_engine

# What each verb needs beside the option; nothing of it is there.
NEEDED = {
    "bench": ("--perplexity", "m.gguf"),
    "chat": ("m.gguf",),
    "compare": ("torch", "reference"),
    "generate": ("m.gguf",),
    "tune": (),
    "track aa": (),
    "track check": ("--baseline", "HEAD"),
}
OPTIONS = {"--threads": 1, "--prefill-threads": 1, "--max-seconds": 0.5}


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


def cases() -> list[tuple[str, str]]:
    verbs = commands(typer.main.get_command(build_app()))
    return [(verb, option) for verb, command in verbs for param in command.params for option in OPTIONS
            if option in param.opts]  # fmt: skip


def test_these_verbs_take_some() -> None:
    assert {verb for verb, _ in cases()} == set(NEEDED) and len(cases()) == 10


@pytest.mark.parametrize(("verb", "option"), cases())
def test_too_few_and_too_many(verb: str, option: str) -> None:
    values = ["-1", "0", "nan" if option == "--max-seconds" else str(len(allowed_cpus()) + 1)]
    for value in values:
        result = CliRunner().invoke(build_app(), [*verb.split(), *NEEDED[verb], option, value])
        if isinstance(result.exception, UserError):
            accepted = "above 0" if option == "--max-seconds" else f"1 to {len(allowed_cpus())}"
            assert result.exception.where == option and result.exception.accepted.startswith(accepted)
        else:
            told = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
            assert result.exit_code == 2 and option in told, (result.exception, told)


@pytest.mark.parametrize("engine", ["kbench", "llama.cpp"])
def test_an_engine_has_as_many_threads_as_there_are_cpus(engine: str) -> None:
    most = len(allowed_cpus())
    assert parse_engine(f"{engine}:threads={most}") == (engine, {"threads": most})
    for count in (0, most + 1):
        with pytest.raises(UserError, match=f"threads={count}: {count} threads .* 1 to {most}"):
            parse_engine(f"{engine}:threads={count}")
