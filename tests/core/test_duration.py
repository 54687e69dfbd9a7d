from __future__ import annotations

import pytest

from kbench.core import UserError, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("10 min", 600), ("1h30m", 5400), ("1.5H", 5400), ("2m 5s", 125)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5m", "10 parsecs", "1e3", "0", "nan", "9999999h", "١٠m"])
def test_nonsense_is_told_with_what_is_accepted(text: str) -> None:
    with pytest.raises(UserError, match="accepted: 10m") as caught:
        parse_duration(text, "--time-budget")
    assert "--time-budget" in caught.value.message
