"""Two implementations of one problem, what came of it, and how that is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kbench.core import Block, Problem
from kbench.measure import Judgement
from kbench.results import Record

from .cell import Cell

Status = Literal["ok", "unsupported", "wrong", "crashed", "slow"]


@dataclass(frozen=True, slots=True)
class Contest:
    """``a`` against ``b`` on ``problem``, both with ``threads`` and ``block``."""

    problem: Problem
    a: str
    b: str
    threads: int
    block: Block = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        return Cell(self.problem, self.a, self.threads).key


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of two sides: pairs with a judgement, or a status and the reason.

    ``a_samples[i]`` and ``b_samples[i]`` are seconds, taken one right after the other. ``wrong`` names the side.
    """

    key: str
    a: str
    b: str
    threads: int
    status: Status = "ok"
    reason: str = ""
    judgement: Judgement | None = None
    a_samples: tuple[float, ...] = ()
    b_samples: tuple[float, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> Record:
        """The pairs' ratios, B's seconds over A's, as samples."""
        judgement = self.judgement
        about: dict[str, Any] = dict(self.extra)
        if judgement is not None:
            about |= {
                "verdict": judgement.verdict.value,
                "ratio": judgement.ratio,
                "interval": [judgement.interval.low, judgement.interval.high],
                "confidence": judgement.interval.confidence,
                "p": judgement.p,
                "a_seconds": _rounded(self.a_samples),
                "b_seconds": _rounded(self.b_samples),
                "n_confirmed_by": len(judgement.confirmed_by),
            }
        return Record.make(
            ("compare", {"case": self.key, "against": self.b}),
            self.a,
            threads=self.threads,
            result=_rounded(b / a for a, b in zip(self.a_samples, self.b_samples, strict=True)),
            status="ok" if judgement is not None else "skipped" if self.status == "slow" else self.status,
            reason=self.reason,
            unit="ratio",
            direction="higher",
            extra={"compare": about},
        )


def _rounded(values: Iterable[float]) -> list[float]:
    """Six digits: more than any of these figures is worth."""
    return [float(f"{value:.6g}") for value in values]
