"""Spaces of which every setting was measured (scripts/record_spaces.py): what a search would measure is looked up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kbench.core import Problem
from kbench.results import Record
from kbench.suites import Cell
from kbench.tuner.cell_space import CellSpace, Setting

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.csv"))

# Where nobody chooses, on the machine that was recorded.
_DEFAULTS = {
    "threads": 1, "panel_tokens": 0, "k_block": 512, "token_tile": 0, "chunk_bytes": 512 << 10,
    "prefetch_bytes": 2048,
}  # fmt: skip


@dataclass
class RecordedSpace:
    """``seconds`` of every setting; ``asked`` are the cells that were looked up, in order."""

    space: CellSpace
    seconds: dict[Setting, float]
    asked: list[Setting] = field(default_factory=list)

    @classmethod
    def read(cls, name: str) -> RecordedSpace:
        head, _, names, *rows = (DATA / f"{name}.csv").read_text().splitlines()
        key, _, implementation = head.removeprefix("# ").rpartition(", ")
        axes = names.split(",")[:-1]
        table = [[int(v) if v.isdigit() else v for v in row.split(",")[:-1]] for row in rows]
        seconds = {tuple(values): float(row.rpartition(",")[2]) / 1e6 for values, row in zip(table, rows, strict=True)}
        candidates = {axis: tuple(dict.fromkeys(values[i] for values in table)) for i, axis in enumerate(axes)}
        start = tuple(_DEFAULTS[axis] for axis in axes)
        return cls(CellSpace(Problem.parse(key), implementation, candidates, start, tuple(seconds)), seconds)

    def measure(self, cell: Cell, limit_seconds: float | None = None) -> Record:
        """The record that measuring ``cell`` makes."""
        record = self.record(cell, 1.0)
        setting = self.space.setting_of(record)
        assert setting is not None
        assert setting not in self.asked, f"{cell} was measured twice"
        self.asked.append(setting)
        return self.record(cell, self.seconds[setting])

    @staticmethod
    def record(cell: Cell, seconds: float) -> Record:
        return Record.make(
            cell.problem, cell.implementation, threads=cell.threads, result=[seconds], extra={"block": dict(cell.block)}
        )

    @property
    def best_seconds(self) -> float:
        return min(self.seconds.values())
