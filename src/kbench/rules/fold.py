"""Names folded: layer numbers into a short pattern that matches just them, or into ranges to read; texts into one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

# The first part of a dotted name that is a plain number. "007" is text: int() would lose its zeros.
_NUMBERED = re.compile(r"((?:[^.]*\.)*?)(0|[1-9][0-9]{0,8})((?:\..*)?)", re.DOTALL)


def split_number(name: str) -> tuple[str, int | None, str]:
    """``model.layers.3.mlp`` -> (``model.layers.``, 3, ``.mlp``); the number is None where there is none."""
    match = _NUMBERED.fullmatch(name)
    return (name, None, "") if match is None else (match[1], int(match[2]), match[3])


def ranges(numbers: Iterable[int]) -> str:
    """``1-59``, ``0,2-5``: for people."""
    parts = []
    for _, run in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def number_regex(numbers: Collection[int]) -> str:
    """A pattern that matches exactly the decimal spellings of ``numbers``: ``([1-9]|[1-5][0-9])`` for 1 to 59."""
    by_length: dict[int, set[str]] = {}
    for number in numbers:
        by_length.setdefault(len(str(number)), set()).add(str(number))
    found = [alternative for length in sorted(by_length) for alternative in _alternatives(by_length[length])]
    return found[0] if len(found) == 1 else f"({'|'.join(found)})"


def _alternatives(words: set[str]) -> list[str]:
    """Alternatives for digit strings of one length: first digits with the same rests share one."""
    rests: dict[str, set[str]] = {}
    for word in words:
        rests.setdefault(word[0], set()).add(word[1:])
    firsts: dict[frozenset[str], list[str]] = {}
    for digit in sorted(rests):
        firsts.setdefault(frozenset(rests[digit]), []).append(digit)
    found = []
    for rest, digits in firsts.items():
        tails = [""] if rest == {""} else _alternatives(set(rest))
        found += [_digit_class(digits) + tail for tail in tails]
    return found


def _digit_class(digits: list[str]) -> str:
    if len(digits) == 1:
        return digits[0]
    text = ""
    for _, run in groupby(enumerate(map(int, digits)), key=lambda pair: pair[1] - pair[0]):
        members = [str(number) for _, number in run]
        text += "".join(members) if len(members) < 3 else f"{members[0]}-{members[-1]}"
    return f"[{text}]"


# Brackets inside brackets help a reader only so far.
_MAX_NESTING = 4


def either(texts: Sequence[str], nesting: int = 0) -> str:
    """A pattern for exactly these texts; dotted parts that several begin with are written once."""
    if len(texts) == 1:
        return re.escape(texts[0])
    first, last = min(texts), max(texts)  # what these two share, all share
    n_same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    common = first[: first.rfind(".", 0, n_same) + 1]
    by_part: dict[str, list[str]] = {}
    for text in (text[len(common) :] for text in texts):
        part = text.partition(".")[0] if "." in text and nesting < _MAX_NESTING else text
        by_part.setdefault(part, []).append(text)
    return f"{re.escape(common)}({'|'.join(either(same, nesting + 1) for same in by_part.values())})"
