"""What can go wrong, with the exit code that it ends the program with.

Every message answers four questions in this order: where, what was found, what is accepted, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KbenchError(Exception):
    """An error that is told to the user in one message, without a traceback."""

    exit_code = 2

    def __init__(self, found: str, *, where: str = "", accepted: str = "", todo: str = "") -> None:
        self.where, self.found, self.accepted, self.todo = where, found, accepted, todo
        super().__init__(self.message)

    @property
    def message(self) -> str:
        head = f"{self.where}: {self.found}" if self.where else self.found
        parts = [head]
        if self.accepted:
            parts.append(f"accepted: {self.accepted}")
        if self.todo:
            parts.append(self.todo)
        return " · ".join(parts)


class UserError(KbenchError):
    """Usage or bad input: a file that is not there, a nonsense size, a rule with a typo."""

    exit_code = 2


class CorruptFile(UserError):
    """An untrusted file that does not hold what its format promises."""


class Unsupported(UserError):
    """A right request for something that this build does not do."""


class ConditionFailed(KbenchError):
    """The asked-for condition does not hold: lint findings, over budget, a regression."""

    exit_code = 1


class OverBudget(ConditionFailed):
    """Weights, cache and workspace do not fit the budget."""


class Inconclusive(KbenchError):
    """Measured, and still not known."""

    exit_code = 3


class InvalidEnvironment(KbenchError):
    """This machine cannot do what was asked: no GPU, a package that is missing."""

    exit_code = 4


class CheckBroken(KbenchError):
    """A benchmark or a correctness check broke."""

    exit_code = 5


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``Did you mean X?`` for the closest known word, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""
