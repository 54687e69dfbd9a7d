"""The ``ladder`` of a suite file: implementations, each paired with an earlier one, beside what people claim.

::

    ladder:
    - step: ladder.naive                                        # an implementation, or auto
      problem: linear(quant=F32,n=4096,k=4096,tokens=1)         # optional: the rung's above
    - step: ladder.reordered
      against: ladder.naive                                     # optional: the nearest rung above of that step
      claim: {at_least: 3, source: where that is said}          # optional; or about: 1.05
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kbench.core import Lines, Problem, UserError, did_you_mean, quant
from kbench.measure import Interval

_KEYS = ("step", "problem", "against", "claim")
_CLAIM_KEYS = ("at_least", "about", "source")
# "About" a gain: from half of it to half as much again. 5 % are claimed with 2.5 to 7.5 %.
_ABOUT = 0.5

HOLDS, LESS, MORE, OPEN = "holds", "does not hold here: less", "does not hold here: more", "not distinguishable"


def about_band(ratio: float) -> tuple[float, float]:
    """The ratios that "about ``ratio``" may mean."""
    low, high = sorted(1 + (ratio - 1) * share for share in (1 - _ABOUT, 1 + _ABOUT))
    return low, high


@dataclass(frozen=True, slots=True)
class Claim:
    """That a step is ``ratio`` times as fast as another: at least, or about; and who says so."""

    ratio: float
    at_least: bool
    source: str

    @property
    def band(self) -> tuple[float, float]:
        """The ratios of which the claim would be true."""
        return (self.ratio, math.inf) if self.at_least else about_band(self.ratio)

    def verdict(self, measured: Interval) -> str:
        """``HOLDS`` or not, when the whole interval says so; else ``OPEN``."""
        low, high = self.band
        if low <= measured.low and measured.high <= high:
            return HOLDS
        if measured.high < low:
            return LESS
        return MORE if measured.low > high else OPEN


@dataclass(frozen=True, slots=True)
class Rung:
    """One line of a ladder. ``against`` is the other side's implementation with its problem; None: only timed."""

    step: str
    problem: Problem
    against: tuple[str, Problem] | None = None
    claim: Claim | None = None

    def __str__(self) -> str:
        return f"{self.step} {self.problem}"


def _unknown(word: str, known: Iterable[str], where: str) -> UserError:
    known = list(known)
    return UserError(f"unknown key {word!r}", where=where, accepted=", ".join(known), todo=did_you_mean(word, known))


def _problem(text: Any, where: str) -> Problem:
    if not isinstance(text, str):
        raise UserError(f"problem is {text!r}", where=where, accepted="op(name=value,...)")
    try:
        problem = Problem.parse(text)
        for name, value in problem.params.items():
            if name.startswith("quant"):
                quant(problem.text(name))
            elif isinstance(value, int) and value < 1:
                raise UserError(f"{name} is {value}", accepted="a positive number")
    except UserError as error:
        raise UserError(error.found, where=where, accepted=error.accepted, todo=error.todo) from None
    return problem


def _claim(value: Any, file: str, line: int | None) -> Claim:
    where = f"{file}:{line}"
    if not isinstance(value, Lines):
        raise UserError(f"claim is {value!r}", where=where, accepted="{at_least: 3, source: text}")
    for key in value:
        if key not in _CLAIM_KEYS:
            raise _unknown(str(key), _CLAIM_KEYS, where)
    ratios = {key: value[key] for key in ("at_least", "about") if key in value}
    source = value.get("source")
    if len(ratios) != 1 or not isinstance(source, str) or not source:
        raise UserError("an incomplete claim", where=where, accepted="at_least or about with a ratio, and a source")
    ((kind, ratio),) = ratios.items()
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < math.inf:
        raise UserError(f"{kind} is {ratio!r}", where=where, accepted="a positive ratio: 1.05 for 5 % faster")
    return Claim(float(ratio), kind == "at_least", source)


def read_rungs(items: Any, file: str, line: int | None) -> Iterable[Rung]:
    """The rungs of a parsed list; ``file`` and ``line`` say where it stands.

    Raises:
        UserError: a mistake in it.
    """
    if not isinstance(items, list) or not items:
        raise UserError("no rungs", where=f"{file}:{line}", accepted="ladder: [{step: ..., problem: ...}, ...]")
    above: dict[str, Problem] = {}
    problem: Problem | None = None
    for item in items:
        if not isinstance(item, Lines):
            raise UserError(f"a rung is {item!r}", where=f"{file}:{line}", accepted="{step: ..., problem: ...}")
        where = f"{file}:{item.line}"
        for key in item:
            if key not in _KEYS:
                raise _unknown(str(key), _KEYS, f"{file}:{item.line_of(key)}")
        step, against = item.get("step"), item.get("against")
        if not isinstance(step, str):
            raise UserError(f"step is {step!r}", where=where, accepted="an implementation's name")
        if "problem" in item:
            problem = _problem(item["problem"], f"{file}:{item.line_of('problem')}")
        if problem is None:
            raise UserError("the first rung has no problem", where=where, accepted="problem: op(name=value,...)")
        if against is not None and (not isinstance(against, str) or against not in above):
            hint = did_you_mean(str(against), above)
            raise UserError(f"no rung above is {against!r}", where=where, accepted=", ".join(above), todo=hint)
        claim = _claim(item["claim"], file, item.line_of("claim")) if "claim" in item else None
        if claim is not None and against is None:
            where = f"{file}:{item.line_of('claim')}"
            raise UserError("a claim without against", where=where, accepted="against: a step above")
        yield Rung(step, problem, None if against is None else (against, above[against]), claim)
        above[step] = problem
