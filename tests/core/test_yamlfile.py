from __future__ import annotations

from pathlib import Path

import pytest

from kbench.core import Lines, UserError, load_yaml, parse_yaml


def test_lines_of_keys() -> None:
    document = parse_yaml("- match:\n    name: a\n  replace:\n    class: b\n")
    assert isinstance(document[0], Lines)
    assert document[0].line_of("replace") == 3
    assert document[0]["match"].line_of("name") == 2
    assert document[0].plain() == {"match": {"name": "a"}, "replace": {"class": "b"}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\nb: [", "f.yaml:2"),
        ("a: 1\na: 2", "f.yaml:2: no valid YAML: duplicate key 'a'"),
        ("!!python/object/apply:os.system ['true']", "no valid YAML"),
        ("? [a]\n: 1", "a key must be text"),
        ("a: &x [*x]", "too many nodes"),
        ("a: !!map [1, 2]", "f.yaml:1: no valid YAML: a mapping is none"),
        ("a: 0x" + "f" * 5000, "f.yaml:1: no valid YAML: a number of 5002 characters"),  # Python will not print it
        ("a: " + "1:" * 3000 + "1.5", "a number of 6003 characters"),
        ("a: " + "1:" * 3000 + "1", "a number of 6001 characters"),  # base 60: quadratic to read
        ("[" + "a," * 100_000 + "]", "more than 100000 values"),
    ],
)
def test_bad_yaml_is_located_and_runs_nothing(text: str, complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "f.yaml")
    assert complaint in str(caught.value)


def test_aliases_that_explode_are_refused() -> None:
    levels = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(UserError, match="too many nodes"):
        parse_yaml("\n".join(levels))
    assert parse_yaml("a: &x {b: 1}\nc: *x")["c"]["b"] == 1


def test_deep_nesting_is_refused_not_a_crash() -> None:
    with pytest.raises(UserError):
        parse_yaml("[" * 100_000, "f.yaml")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_yaml(tmp_path / "none.yaml")


def test_a_file_that_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read: Is a directory$"):
        load_yaml(tmp_path)
    (tmp_path / "latin1.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(UserError, match=r"cannot be read: no UTF-8 at byte 3$"):
        load_yaml(tmp_path / "latin1.yaml")
