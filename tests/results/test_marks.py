"""Marks: a YAML file that people and the verb write, and that is not believed before it is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbench.core import UserError
from kbench.results import Mark, add_mark, load_marks

HEAD = "kbench_marks: 1\nmarks:\n"


def test_marks_are_added_at_the_end_and_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / "marks.yaml"
    assert load_marks(path) == []
    first = Mark("linear(quant=Q4_K*", "1234567", "accepted", 'a "quoted": #text\n}')
    add_mark(path, first)
    path.write_text(path.read_text() + "# somebody's words\n  \n")
    second = Mark("*", "abcdef0", "fixed", host="9d2")
    add_mark(path, second)
    assert load_marks(path) == [first, second] and "# somebody's words" in path.read_text()


def test_a_hand_written_file(tmp_path: Path) -> None:
    path = tmp_path / "marks.yaml"
    path.write_text(f"{HEAD}  - case: '*'\n    commit: 1234567\n    mark: environment\n  # the end\n")
    add_mark(path, Mark("a", "7654321", "fixed"))
    assert load_marks(path) == [Mark("*", "1234567", "environment"), Mark("a", "7654321", "fixed")]


def test_a_list_that_does_not_end_the_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "marks.yaml"
    path.write_text("marks:\n- {case: a, commit: 7654321, mark: fixed}\nkbench_marks: 1\n")
    before = path.read_text()
    with pytest.raises(UserError):
        add_mark(path, Mark("b", "7654321", "fixed"))
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "no file of marks"),
        ("kbench_marks: 2\nmarks: []", ":1: kbench_marks: 2"),
        (f"{HEAD}other: 1", "unknown 'other'"),
        (f"{HEAD} {{a: 1}}", "marks is no list"),
        (f"{HEAD}- 3", "a mark is 3"),
        (f"{HEAD}- {{case: a, commit: 7654321}}", "mark is missing"),
        (f"{HEAD}- {{case: a, commit: 7654321, mark: acepted}}", ":3: mark is 'acepted'"),
        (f"{HEAD}- {{case: a, comit: 7654321, mark: fixed}}", "did you mean commit?"),
        (f"{HEAD}- {{case: [a], commit: 7654321, mark: fixed}}", "case is"),
        (f"{HEAD}- {{case: a, commit: '../x', mark: fixed}}", "commit is"),
        (f"{HEAD}- {{case: a, commit: 7654321, mark: fixed, why: 2026-01-01}}", "why is"),
    ],
)
def test_what_is_no_mark_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "marks.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as found:
        load_marks(path)
    assert words in found.value.message and str(path) in found.value.message


@pytest.mark.parametrize(("case", "commit", "words"), [("a", "abc", "commit is 'abc'"), ("", "7654321", "no case")])
def test_a_mark_that_is_none_is_refused_and_leaves_no_file(tmp_path: Path, case: str, commit: str, words: str) -> None:
    path = tmp_path / "marks.yaml"
    with pytest.raises(UserError, match=words):
        add_mark(path, Mark(case, commit, "accepted"))
    assert not path.exists()
