"""The CI recipe: every command in it, and in its page, is one that kbench has; its workflow is well formed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kbench.cli.main import build_app

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples/ci/speed.yml"
PAGE = ROOT / "docs/ci.md"
# An expression of the workflow's, or a variable of the shell's, whose value is another's affair.
_VALUE = re.compile(r"\$\{\{.*?\}\}|\$\w+")


def workflow() -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    loaded: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    return {("on" if key is True else key): value for key, value in loaded.items()}


def commands() -> Iterator[list[str]]:
    """Every call of kbench in the workflow and in the page's blocks, split as a shell would."""
    scripts = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    scripts += re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for script in scripts:
        for line in _VALUE.sub("value", script).splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0].rpartition("/")[2] == "kbench":
                yield words[1:]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_kbench_takes_it(words: list[str]) -> None:
    # An option that there is not is an error before the help is printed.
    result = CliRunner().invoke(build_app(), [*words, "--help"])
    assert result.exit_code == 0, result.output


def test_the_commands_are_found() -> None:
    verbs = [" ".join(words[:2]) for words in commands()]
    assert {"track check", "track record", "track aa", "track history"} <= set(verbs)


def test_strangers_code_gets_a_token_that_can_only_read() -> None:
    made = workflow()
    assert set(made["on"]) == {"pull_request", "push"}  # not pull_request_target
    assert made["permissions"] == {"contents": "read"}
    check, record = made["jobs"]["check"], made["jobs"]["record"]
    assert check["if"] == "github.event_name == 'pull_request'" and "permissions" not in check
    assert record["if"] == "github.event_name == 'push'" and record["permissions"] == {"contents": "write"}
    (checkout,) = (step for step in check["steps"] if "checkout" in step.get("uses", ""))
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}
    # What a pull request can name goes through the environment, never into a script's text.
    for job in made["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")


def test_the_page_names_the_workflow() -> None:
    assert "../examples/ci/speed.yml" in PAGE.read_text()
