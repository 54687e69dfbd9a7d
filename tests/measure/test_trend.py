"""What steps mean: open, recovered, marked, back and forth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbench.measure import MarkKind, Verdict, judge_history


def levels(*values: float, n: int = 15) -> list[float]:
    """``n`` commits at each level, with a little of a deterministic noise."""
    return [value * (1 + 0.001 * ((7 * i) % 5 - 2)) for i, value in enumerate(v for v in values for _ in range(n))]


def states(values: Sequence[float], marks: Sequence[tuple[int, MarkKind]] = (), lower: bool = True) -> list[str]:
    return [step.state for step in judge_history(values, lower_is_better=lower, marks=marks).steps]


@pytest.mark.parametrize(
    ("values", "lower", "verdict", "wanted"),
    [
        (levels(1.0, 1.1), True, "REGRESSED", ["open"]),
        (levels(1.0, 1.1), False, "IMPROVED", ["improved"]),
        (levels(1.0, 0.9), False, "REGRESSED", ["open"]),
        (levels(1.0, 1.1, 1.0), True, "SAME", ["recovered", "improved"]),
        (levels(1.0, 1.1, 1.05), True, "REGRESSED", ["open", "improved"]),
        (levels(1.0, 0.8, 1.0), True, "REGRESSED", ["improved", "open"]),
        (levels(1.0), True, "SAME", []),
        (levels(1.0, n=11), True, "INCONCLUSIVE", []),
    ],
)
def test_a_regression_is_a_step_that_nothing_made_good(
    values: list[float], lower: bool, verdict: str, wanted: list[str]
) -> None:
    assert judge_history(values, lower_is_better=lower).verdict is Verdict(verdict)
    assert states(values, lower=lower) == wanted


def test_what_is_left_of_a_step() -> None:
    trend = judge_history(levels(1.0, 1.2, 1.1))
    assert trend.steps[0].cost == pytest.approx(1.2, rel=0.01)
    assert trend.steps[0].left == trend.left == pytest.approx(1.1, rel=0.01)


def test_marks_say_what_a_step_was() -> None:
    up = levels(1.0, 1.1)
    assert states(up, [(15, "accepted")]) == ["accepted"]
    assert states(up, [(17, "environment")]) == ["environment"]  # a commit or two beside it
    assert states(up, [(20, "accepted")]) == ["open"]  # another commit
    assert states(up, [(25, "fixed")]) == ["fixed"]
    assert states(up, [(10, "fixed")]) == ["open"]  # fixed before it was there
    assert judge_history(up, marks=[(15, "accepted")]).verdict is Verdict.SAME


def test_an_accepted_step_does_not_hide_another() -> None:
    values = levels(1.0, 1.2, 1.32)
    trend = judge_history(values, marks=[(15, "accepted")])
    assert [step.state for step in trend.steps] == ["accepted", "open"]
    assert trend.left == pytest.approx(1.1, rel=0.01)
    # And the machine's getting faster makes no regression good.
    assert states(levels(1.0, 1.2, 0.6), [(30, "environment")]) == ["open", "environment"]


def test_back_and_forth_is_no_regression() -> None:
    trend = judge_history(levels(1.0, 1.1, 1.0, 1.1, 1.0, 1.1))
    assert trend.steps[-1].state == "flapping" and trend.verdict is Verdict.SAME
    assert "back and forth" in trend.reason
    assert states(levels(1.0, 1.1, 1.0, 1.1))[-1] == "open"  # once may be somebody's doing
