"""Name patterns: Python regular expressions, refused where matching one could take forever.

A rule file is untrusted and Python's matcher backtracks: ``(a+)+$`` on a name of 60 letters outlives its reader.
Module names are short, so it is enough to bound how often a pattern may repeat something of variable length: on a
name of 45 characters, ``MAX_REPEATS`` repeats in a row can divide it in C(48, 3) = 17 thousand ways. Alternatives
multiply as well: ``(?:a|.)`` forty times over can match in 2^40 ways. What single patterns may do, a file of thousands
of them must not add up to: a file has ``MAX_FILE_WAYS`` for all of them.
"""

from __future__ import annotations

import math
import re
import warnings

# The longest pattern of a hand-written file for 8 GPUs has 90 characters; `emit` splits its own at this length.
MAX_PATTERN = 2000
MAX_REPEATS = 3
# Each optional part doubles the ways to match.
MAX_OPTIONAL = 4
# Products of alternatives in a row that can begin alike, times the ways to divide a name by repeats. Alternatives that
# begin differently, as those of layer numbers and of module names mostly do, are never tried both.
MAX_WAYS = 100_000
# Of all patterns of a file together. A way costs up to 5 ns on each of DeepSeek-V3's 1156 modules: some ten seconds,
# with patterns made for the purpose. A file by hand for two GPUs comes to some 3000.
MAX_FILE_WAYS = 1_500_000
# What a pattern costs at least, in ways: compiling it, and asking for each module.
LEAST_WAYS = 300
# Nested counts multiplied. Python counts to this even where there is nothing to match, as in `(?:){1000000000}`.
MAX_COUNT = 1000

_VERBOSE_GROUP = re.compile(r"\(\?[a-zA-Z]*x[a-zA-Z-]*:")
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d*)(,?)(\d*)\})[?+]?")


class PatternError(ValueError):
    """Why a pattern is refused; ``accepted`` says what would do."""

    def __init__(self, found: str, accepted: str) -> None:
        super().__init__(found)
        self.accepted = accepted


def compile_name(text: str) -> re.Pattern[str]:
    """The compiled pattern of a ``match.name``.

    Raises:
        PatternError: no regular expression, too long, or one whose matching could explode.
    """
    if len(text) > MAX_PATTERN:
        raise PatternError(f"a pattern of {len(text)} characters", f"at most {MAX_PATTERN} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # e.g. a "[[" that a later Python may read as a nested set
            compiled = re.compile(text)
    except re.error as error:
        at = f" at character {error.pos + 1}" if error.pos is not None else ""
        raise PatternError(f"{text!r} is no regular expression: {error.msg}{at}", "Python re syntax") from None
    except (OverflowError, RecursionError) as error:
        raise PatternError(f"{_short(text)} is no usable regular expression: {error}", "Python re syntax") from None
    if compiled.flags & re.VERBOSE or _VERBOSE_GROUP.search(text):
        raise PatternError(f"{_short(text)} has the flag x", "patterns without it: it hides parts as comments")
    scanner = _Scanner(text)
    repeats, optional, _ = scanner.sequence()
    if repeats > MAX_REPEATS or optional > MAX_OPTIONAL:
        raise PatternError(
            f"{_short(text)} has {repeats} repeats and {optional} optional parts in a row: matching could explode",
            f"at most {MAX_REPEATS} repeats such as .* and {MAX_OPTIONAL} optional parts",
        )
    ways = scanner.most_ways * math.comb(45 + repeats, repeats)
    if scanner.most_ways > 1 and ways > MAX_WAYS:
        raise PatternError(
            f"{_short(text)} has {ways} combinations of alternatives and repeats: matching could explode",
            f"at most {MAX_WAYS}",
        )
    return compiled


def count_ways(text: str) -> int:
    """In how many ways a pattern that compiles can match a name, at most; 1 for most that are written."""
    scanner = _Scanner(text)
    repeats, optional, _ = scanner.sequence()
    if text.startswith("^") or (
        scanner.most_ways == 1 and not repeats and not optional
    ):  # or where text to find is looked for first
        return scanner.most_ways * math.comb(45 + repeats, repeats) << optional
    # All of that is tried anew from each character on, with ever less of the name left to divide.
    return scanner.most_ways * math.comb(46 + repeats, repeats + 1) << optional


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


_NOTHING: frozenset[str] | None = frozenset()
_RANGE = re.compile(r"\[(?:[0-9A-Za-z_](?:-[0-9A-Za-z])?)+\]")


def _beginnings(atom: str) -> frozenset[str] | None:
    """The characters that ``atom`` can stand for; None: any. It is part of a pattern that compiles."""
    if len(atom) == 2 and atom[0] == "\\" and not atom[1].isalnum():
        return frozenset(atom[1])
    if len(atom) == 1 and atom not in ".^$":
        return frozenset(atom)
    if _RANGE.fullmatch(atom):
        return frozenset(char for char in map(chr, range(128)) if re.fullmatch(atom, char))
    return None


def _overlap(branches: list[tuple[frozenset[str] | None, int]]) -> int:
    """The most ways of alternatives that one character can begin; an empty one can always be taken."""
    always = sum(ways for begins, ways in branches if not begins)
    by_char: dict[str, int] = {}
    for begins, ways in branches:
        for char in {char.lower() for char in begins or ()}:  # there is a flag to ignore case
            by_char[char] = by_char.get(char, 0) + ways
    return always + max(by_char.values(), default=0)


class _Scanner:
    """Walks a pattern that compiles, adding up (repeats, optional parts, whether its length varies)."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.ways = self.most_ways = self.count = 1  # ways and nested counts of what was read last; most ways of all

    def sequence(self) -> tuple[int, int, bool]:
        """Up to the closing bracket: the worst of its alternatives."""
        worst, varies = (0, 0), False
        repeats = optional = 0
        ways, most_count = 1, 1
        branches: list[tuple[frozenset[str] | None, int]] = []  # (characters that it can begin with, its ways)
        begins, begin_at = _NOTHING, self.at
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "|":
                worst, repeats, optional, varies = (max(worst[0], repeats), max(worst[1], optional)), 0, 0, True
                branches.append((begins, ways))
                ways, begins = 1, _NOTHING
                self.at += 1
                begin_at = self.at
                continue
            looks = _LOOKAROUND.match(self.text, self.at) is not None
            self.ways = self.count = 1
            first, atom_at = self.at == begin_at, self.at
            inner_repeats, inner_optional, inner_varies = self._atom()
            inner_count = self.count
            most_count = max(most_count, inner_count)
            if looks:  # once it has looked, it is not tried again another way: what follows does not add to it
                worst = max(worst[0], repeats + inner_repeats), max(worst[1], optional + inner_optional)
                inner_repeats = inner_optional = 0
                self.ways = 1
            ways *= self.ways
            repeats, optional, varies = repeats + inner_repeats, optional + inner_optional, varies or inner_varies
            atom = self.text[atom_at : self.at]
            low, high = self._quantifier()
            if first:
                begins = _beginnings(atom) if high is None or low else None
            if high is None:
                continue
            count = low if high == 1 << 30 else high
            self.count = max(count, 1) * inner_count
            if self.count > MAX_COUNT:
                raise PatternError(f"{_short(self.text)} counts to {self.count}", f"counts up to {MAX_COUNT}")
            most_count = max(most_count, self.count)
            if high > 1 and inner_varies:
                raise PatternError(
                    f"{_short(self.text)} repeats a part of varying length, so that matching could explode",
                    "repeats of plain characters and classes, such as .* or [0-9]+",
                )
            repeats += high > 1 and low != high
            optional += high == 1 and low == 0
            varies = varies or low != high
        self.ways, self.count = _overlap([*branches, (begins, ways)]), most_count
        self.most_ways = max(self.most_ways, self.ways)
        return max(worst[0], repeats), max(worst[1], optional), varies

    def _atom(self) -> tuple[int, int, bool]:
        char = self.text[self.at]
        if char == "\\":
            self.at += 2
        elif char == "[":
            self._set()
        elif self.text.startswith("(?#", self.at):
            self.at = self.text.index(")", self.at) + 1
        elif char == "(":
            self.at += 1
            inner = self.sequence()
            self.at += 1
            return inner
        else:
            self.at += 1
        return 0, 0, False

    def _set(self) -> None:
        self.at += 1
        self.at += self.text.startswith("^", self.at)
        self.at += self.text.startswith("]", self.at)  # a bracket in first place stands for itself
        while self.text[self.at] != "]":
            self.at += 2 if self.text[self.at] == "\\" else 1
        self.at += 1

    def _quantifier(self) -> tuple[int, int | None]:
        """Least and greatest count, or ``(0, None)`` where the atom is not quantified."""
        match = _QUANTIFIER.match(self.text, self.at)
        if match is None or (match[0].startswith("{") and not (match[2] or match[3] or match[4])):
            return 0, None  # "{}" stands for itself
        self.at = match.end()
        if match[1]:
            return (match[1] == "+"), (1 if match[1] == "?" else 1 << 30)
        low = int(match[2] or 0)
        high = low if not match[3] else int(match[4]) if match[4] else 1 << 30
        return low, high
