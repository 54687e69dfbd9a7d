"""The exit code of a check, for every mixture of what its cases came to."""

from __future__ import annotations

from typing import Any

import pytest

from kbench.cli.verdicts import case_fields, checked_exit
from kbench.core import KbenchError
from kbench.results import VerdictRow


def row(word: str, high: float = 1.1) -> VerdictRow:
    if word.isupper():
        return VerdictRow("c", "main", "HEAD", verdict=word, ratio=1.0, low=0.9, high=high, margin=0.03)
    return VerdictRow("c", "main", "HEAD", word, "why")  # type: ignore[arg-type]


def code(*rows: VerdictRow, **options: Any) -> int:
    try:
        checked_exit(rows, **options)
    except KbenchError as error:
        return error.exit_code
    return 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["SAME"], 0),
        (["SAME", "IMPROVED", "new", "gone", "unlike", "unsupported"], 0),
        (["SAME", "REGRESSED"], 1),
        (["REGRESSED", "disturbed", "INCONCLUSIVE"], 1),
        (["REGRESSED", "wrong"], 5),
        (["SAME", "crashed"], 5),
        (["SAME", "INCONCLUSIVE"], 3),
        (["SAME", "slow"], 3),
        (["SAME", "INCONCLUSIVE", "disturbed"], 4),
        (["unlike", "new"], 4),
        (["slow"], 3),
        (["slow", "unsupported"], 3),
    ],
)
def test_the_worst_decides(words: list[str], expected: int) -> None:
    assert code(*map(row, words)) == code(*map(row, reversed(words))) == expected
    if expected in (3, 4) and ("SAME" in words or "slow" in words):
        assert code(*map(row, words), allow_inconclusive=True) == 0


def test_a_machine_that_was_disturbed_all_the_time_passes_where_not_knowing_does() -> None:
    assert code(row("disturbed")) == 4 and code(row("disturbed"), allow_inconclusive=True) == 0
    assert code(row("unlike"), allow_inconclusive=True) == 4


def test_what_is_known_not_to_be_slower_passes_whatever_else_is_unknown() -> None:
    assert code(row("INCONCLUSIVE", high=1.02)) == 0 and code(row("INCONCLUSIVE", high=1.04)) == 3


def test_fields_of_a_row_that_has_no_verdict() -> None:
    fields = case_fields(row("unlike"))
    assert fields["verdict"] is fields["interval"] is None and fields["status"] == "unlike" and "n_blocks" not in fields
