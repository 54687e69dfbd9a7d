"""A stage with its units on given devices: its seconds and its bytes.

The columns of a stage are all ways to place its units. A column's time is found by running its schedule, so that
overlap (the maximum of the CPU's and the GPU's side) is exact and needs no linearisation; the solver then picks one
column for each stage. Columns that cost at least as much time and memory as another are dropped, which changes no
optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Bytes of a tensor that several stages may share on a device: (tensor name, device index).
Shared = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Column:
    """One way to place a stage's units.

    Attributes:
        devices: device index of each unit.
        exit: device index where the stage's result lies.
        seconds: of the whole workload, by the device index that the stage's input lies on.
        n_bytes: by device index, tensors in ``shared`` not counted.
        shared: tensors that another stage uses too, e.g. the tied output matrix.
        split: of the stage's routed experts, how many lie on which device while the others lie where ``devices`` says.
    """

    devices: tuple[int, ...]
    exit: int
    seconds: tuple[float, ...]
    n_bytes: tuple[int, ...]
    shared: frozenset[Shared] = frozenset()
    split: tuple[int, int] | None = None


def undominated(columns: Sequence[Column], tight: Sequence[int], entry: int) -> list[Column]:
    """The columns that can be optimal when the input lies on ``entry`` and only devices in ``tight`` are scarce.

    Sorted by time; of equal columns the first in the given order stays.
    """
    kept: list[Column] = []
    # What those that are kept so far need, by exit and shared tensors.
    least: dict[tuple[int, frozenset[Shared]], list[tuple[int, ...]]] = {}
    for column in sorted(columns, key=lambda c: (c.seconds[entry], [c.n_bytes[d] for d in tight])):
        needs = tuple(column.n_bytes[d] for d in tight)
        rivals = (sizes for (exit_, shared), sizes in least.items() if exit_ == column.exit and shared <= column.shared)
        if any(all(a <= b for a, b in zip(size, needs, strict=True)) for sizes in rivals for size in sizes):
            continue
        kept.append(column)
        sizes = least.setdefault((column.exit, column.shared), [])
        if len(tight) <= 1:
            sizes.clear()  # in this order, each that is kept needs less than all before it
        sizes.append(needs)
    return kept
