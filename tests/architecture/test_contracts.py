"""What packages that may not import each other must nevertheless agree on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbench import engine, kernels, rules, suites, tuner
from kbench.core import OPS, parse_yaml

ROOT = Path(__file__).parents[2]
# Python, and C++ but for tables of data: past this a file holds more than one noun.
MAX_LINES = 400


def test_rules_accept_every_implementation_that_kernels_have() -> None:
    for item in kernels.implementations():
        text = f"- match: {{name: ^lm_head$}}\n  replace: {{class: Linear, kwargs: {{generate_op: {item.name}}}}}\n"
        errors = [
            str(finding) for finding in rules.check(rules.parse_rules(parse_yaml(text))) if finding.code != "dead"
        ]
        assert not [error for error in errors if item.name in error]
    wrong = rules.check(rules.parse_rules(parse_yaml(text.replace(item.name, "cpu.avx3"))))
    assert any("cpu.avx3" in str(finding) for finding in wrong)


def test_every_op_has_a_spec() -> None:
    for op in OPS:
        assert kernels.op_spec(op).hash


def test_tuner_plans_the_chunk_that_the_engine_runs() -> None:
    assert tuner.DEFAULT_CHUNK == engine.DEFAULT_CHUNK


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("*.yaml")), ids=lambda path: path.name)
def test_every_suite_loads(path: Path) -> None:
    suite = suites.load_suite(path)
    assert suites.expand(suite) or suites.engine_cases(suite, "model.gguf") or suite.claims


SOURCES = sorted(path for kind in ("*.py", "*.cpp", "*.h") for path in (ROOT / "src").rglob(kind))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_file_holds_one_noun(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= MAX_LINES, f"{lines} lines, at most {MAX_LINES}: split it by noun"


def test_contributing_names_files_that_exist() -> None:
    """In its table of what is added where; paths are below the package, `<isa>` stands for any of them."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## A new ...")[2].partition("\n## ")[0]
    named = [path for path in re.findall(r"`([^` ]*/[^` ]*)`", table) if "<" not in path]
    missing = [path for path in named if not list((ROOT / "src" / "kbench").glob(path.rstrip("/")))]
    assert len(named) > 8 and not missing
