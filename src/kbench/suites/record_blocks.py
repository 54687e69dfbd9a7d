"""Recording for later: blocks, each the samples of one fresh process, spread over the time that the run takes.

::

    round 1:  process 1   case 1   case 2   case 3 ...
    round 2:  process 2   case 1   case 2   case 3 ...        a slow minute hits one block of many cases, not all of one

A block that was taken while the machine was disturbed, or whose canary before and after disagree, is taken again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from kbench.core import CheckBroken, KbenchError
from kbench.kernels import comparable, op_spec
from kbench.measure import Canary, Guard, Side, canary, conditions
from kbench.results import Record, Store

from .cell import Cell
from .compare_ops import SAMPLE_SECONDS
from .compare_revisions import revision_side
from .revision import Built
from .runner import Progress, part_for

N_BLOCKS = 5
_SAMPLES = 10
_MAX_DISCARDED = 3
_FAILED: dict[str, Any] = {"wrong": "wrong", "Unsupported": "unsupported", "UserError": "unsupported"}


@dataclass
class Recorder:
    """Measures with the kbench of ``built``.

    Attributes:
        n_blocks, n_samples: of each case blocks, of each block samples of about 20 ms.
        about: stored with every block beside the revision's name and time.
    """

    built: Built
    n_blocks: int = N_BLOCKS
    n_samples: int = _SAMPLES
    guard: Guard = field(default_factory=Guard)
    read_canary: Callable[[], Canary] = lambda: canary()
    make_side: Callable[[Built], Side] = lambda built: revision_side(built.name, built)
    about: dict[str, Any] = field(default_factory=dict)
    # Canary after the last block: the next one's before.
    _canary: Canary | None = None

    def record(
        self, cells: Sequence[Cell], store: Store | None, *, suite: str = "track", progress: Progress | None = None
    ) -> list[Record]:
        """A record for every case and block, in the order taken; stored as soon as it is made. What failed is a record
        of its status, once."""
        run = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        records: list[Record] = []
        failed: set[int] = set()
        total = self.n_blocks * len(cells)
        for index in range(self.n_blocks):
            side = self.make_side(self.built)
            try:
                for number, cell in enumerate(cells):
                    if progress is not None:
                        progress(index * len(cells) + number, total, f"{cell} block {index + 1}")
                    if number in failed:
                        continue
                    record = self._block(side, cell, run, index)
                    if record.status not in ("ok", "skipped"):
                        failed.add(number)
                    if store is not None:
                        store.append(record, suite=suite)
                    records.append(record)
            finally:
                side.stop()
        if progress is not None and total:
            progress(total, total, "")
        return records

    def _block(self, side: Side, cell: Cell, run: str, index: int) -> Record:
        part = part_for(comparable(cell.implementation), cell.problem)
        request = {"problem": part.problem.key, "implementation": cell.implementation, "threads": cell.threads,
                   "block": dict(cell.block)}  # fmt: skip
        track: dict[str, Any] = {"run": run, "index": index, "revision": self.built.name,
                                 "commit_time": self.built.time, **self.about}  # fmt: skip
        try:
            side.start()
            said = side.ask("open", request)
            if "failed" in said:
                return self._made(cell, track, {}, _FAILED.get(said["failed"], "crashed"), said["found"])
            discarded: list[str] = []
            while True:
                samples, after, why = self._taken(side, part.scale)
                if not why:
                    break
                discarded.append("; ".join(why))
                if len(discarded) > _MAX_DISCARDED:
                    reason = f"taken in a bad state {len(discarded)} times, last {discarded[-1]}"
                    return self._made(cell, track, said, "skipped", reason)
        except KbenchError as error:
            side.stop()
            return self._made(cell, track, {}, "crashed", error.message)
        track |= {"canary": after.as_dict(), "conditions": conditions(), "discarded": discarded}
        return self._made(cell, track, {**said, "subset": part.note}, "ok", "", samples)

    def _taken(self, side: Side, scale: float) -> tuple[list[float], Canary, tuple[str, ...]]:
        before = self._canary or self.read_canary()
        self.guard.restart()
        samples = []
        for _ in range(self.n_samples):
            answer = side.ask("take", {"seconds": SAMPLE_SECONDS})
            if not isinstance(answer, float):
                raise CheckBroken(str(answer.get("found", answer)), where=side.name)
            samples.append(answer * scale)
        why = self.guard.bad()
        after = self._canary = self.read_canary()
        return samples, after, (*why, *after.changed(before))

    def _made(
        self, cell: Cell, track: dict[str, Any], said: dict[str, Any], status: Any, reason: str,
        samples: Sequence[float] = (),
    ) -> Record:  # fmt: skip
        extra: dict[str, Any] = {"block": dict(cell.block), "track": track}
        extra |= {name: said[name] for name in ("kernel_version", "cold", "error_share") if name in said}
        if said.get("subset"):
            extra["subset"] = said["subset"]
        record = Record.make(
            cell.problem, cell.implementation, threads=cell.threads,
            result=[float(f"{value:.6g}") for value in samples], status=status, reason=reason,
            op_spec_hash=str(said.get("op_spec_hash", "")) or op_spec(cell.problem.op).hash, extra=extra,
        )  # fmt: skip
        return record if self.built.commit is None else replace(record, commit=self.built.commit)
