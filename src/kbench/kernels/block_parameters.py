"""What can be chosen of an implementation's kernels: ``block`` in rules, suites and placements.

Each implementation declares its own: the native ones in ``cpu/csrc/block_parameters.cpp``. Rules are checked against
the declaration, and a tuner's search space is read from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbench.core import Block, UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class BlockParameter:
    """A number, or one of a few ``choices`` by name.

    Attributes:
        unit: what the number counts.
        default: what the kernel takes where nobody chooses.
        candidates: what is worth trying, ascending, the default among them.
        low, high, multiple: a number may be any multiple of ``multiple`` in between.
        choices: names; the default and the candidates are then among them.
        accepted: the values in words, for messages.
        reason: why the default is what it is.
    """

    name: str
    unit: str
    default: int | str
    candidates: tuple[int | str, ...]
    low: int
    high: int
    multiple: int
    choices: tuple[str, ...]
    accepted: str
    reason: str

    def accepts(self, value: object) -> bool:
        """Whether ``value`` may be given."""
        if self.choices:
            return value in self.choices
        number = isinstance(value, int) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and value % self.multiple == 0  # type: ignore[operator]


def parameter_errors(block: Block, known: Mapping[str, BlockParameter], where: str = "") -> dict[str, UserError]:
    """What is wrong with ``block`` for an implementation that has the parameters ``known``, by name."""
    errors = {}
    for name, value in block.items():
        if name not in known:
            hint = did_you_mean(name, known)
            found = f"unknown kernel parameter {name!r}"
            errors[name] = UserError(found, where=where, accepted=", ".join(known), todo=hint)
        elif not known[name].accepts(value):
            errors[name] = UserError(f"{name} is {value}", where=where, accepted=known[name].accepted)
    return errors
