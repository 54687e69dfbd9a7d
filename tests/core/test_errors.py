from __future__ import annotations

import pytest

from kbench.core import (
    CheckBroken,
    CorruptFile,
    InvalidEnvironment,
    KbenchError,
    OverBudget,
    Unsupported,
    UserError,
    did_you_mean,
)


def test_the_message_answers_in_order() -> None:
    error = UserError("unknown op 'linaer'", where="r.yaml:3", accepted="linear, add", todo="did you mean linear?")
    assert str(error) == "r.yaml:3: unknown op 'linaer' · accepted: linear, add · did you mean linear?"


@pytest.mark.parametrize(
    ("kind", "code"),
    [(UserError, 2), (CorruptFile, 2), (Unsupported, 2), (OverBudget, 1), (InvalidEnvironment, 4), (CheckBroken, 5)],
)
def test_exit_codes(kind: type[KbenchError], code: int) -> None:
    assert kind("x").exit_code == code


def test_did_you_mean_stays_silent_for_nonsense() -> None:
    assert did_you_mean("zzzz", ["linear"]) == ""
