from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbench.core import UserError, format_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("21G", 21 * 2**30),
        ("21GiB", 21 * 2**30),
        ("21gb", 21 * 10**9),
        ("1.5G", 3 * 2**29),
        ("512M", 2**29),
        ("0", 0),
        (" 7 KiB ", 7168),
    ],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "G", "-1G", "21X", "1e9", "nan", "21 G B", "٣G", "9" * 400, "2000000T"])
def test_nonsense_is_told_with_what_is_accepted(text: str) -> None:
    with pytest.raises(UserError, match="21G or 21GiB"):
        parse_size(text, "--vram")


@given(st.integers(0, 2**45))
def test_format_is_read_back_within_its_digits(n_bytes: int) -> None:
    text = format_bytes(n_bytes)
    assert parse_size(text) == pytest.approx(n_bytes, rel=0.006, abs=0.6)
