"""Reading: nothing that a file holds runs, and nothing in it ends in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_trees import tiny_tree

from kbench.core import UserError, parse_yaml
from kbench.rules import check, load_rules, parse_rules, read_rules

TREE = tiny_tree(1)


def codes(text: str) -> list[str]:
    return [finding.code for finding in parse_rules(parse_yaml(text)).findings]


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "# a comment\n- match:\n    name: a\n  replace:\n    class: Linear\n    kwargs:\n      threads: 2\n"
    )
    (rule,) = read_rules(path).rules
    assert (rule.line, rule.number, rule.recursive) == (2, 1, True)
    parts = ("match", "match.name", "replace.class", "replace.kwargs.threads", "replace.kwargs.absent", "recursive")
    assert [rule.line_of(part) for part in parts] == [2, 3, 5, 7, 6, 2]


@pytest.mark.parametrize(
    "scalar", ["2024-99-99", "!!bool maybe", '!!int ""', "!!timestamp x", "1" * 5000, "!!python/name:os.system"]
)
def test_scalars_that_claim_a_type_are_no_traceback(scalar: str) -> None:
    with pytest.raises(UserError, match="no valid YAML"):
        parse_yaml(f"- match: {{name: {scalar}}}")


def test_load_tells_every_error_at_once(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("- match: {nam: x}\n  replace: {class: Linear}\n- match: {name: x}\n  replace: {clas: Linear}\n")
    with pytest.raises(UserError) as caught:
        load_rules(path)
    assert [line.split(" · ")[1] for line in caught.value.message.splitlines()] == [
        "unknown key 'nam'",
        "neither name nor class",
        "unknown key 'clas'",
    ]


WORDS = ("match", "replace", "name", "class", "kwargs", "recursive", "kbench", "rules", "transfer_map", "block",
         "generate_op", "prefill_op", "generate_device", "out_device", "threads", "provenance", "backend")  # fmt: skip
scalars = st.one_of(
    st.sampled_from(["cpu", "cuda:1", "Linear", "Model", "KLinearMarlin", "KExpertsCPU", "default", "None", ".*", "("]),
    st.sampled_from(["ktransformers.operators.linear.KTransformersLinear", "torch.nn.Linear", "ktransformers.x"]),
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=4),
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.integers(0, 3), inner),
    max_leaves=12,
)
rules_like = st.lists(
    st.fixed_dictionaries(
        {"match": st.dictionaries(st.sampled_from(("name", "class")), scalars, max_size=2) | documents},
        optional={
            "replace": st.fixed_dictionaries(
                {}, optional={"class": scalars, "kwargs": st.dictionaries(st.sampled_from(WORDS), scalars | documents)}
            ),
            "recursive": scalars,
        },
    ),
    max_size=3,
)


@settings(max_examples=100, deadline=None)
@given(documents | rules_like)
def test_any_document_gives_findings_not_a_traceback(document: object) -> None:
    import yaml

    parsed = parse_yaml(yaml.safe_dump(document, allow_unicode=True))
    for finding in check(parse_rules(parsed), TREE, strict=True):
        assert finding.found and finding.line >= 0
