"""Two implementations of one problem, what came of it, and how that is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kbench.core import Block, Problem
from kbench.measure import Judgement, median
from kbench.results import Record, RowStatus, VerdictRow

from .cell import Cell

# Of a record there are fewer words.
_STORED: Mapping[str, Any] = {"slow": "skipped", "disturbed": "skipped", "unlike": "skipped"}
# Of what a comparison knows beside its numbers, what is shown with them.
_SHOWN = ("margin", "tokens", "subset", "logits_apart", "discarded")


@dataclass(frozen=True, slots=True)
class Contest:
    """``a`` against ``b`` on ``problem``, both with ``threads`` and ``block``.

    ``names`` are what the sides are called where not by their implementations: revisions run the same one. ``margin``
    takes the plan's place where this case is noisier by itself.
    """

    problem: Problem
    a: str
    b: str
    threads: int
    block: Block = field(default_factory=dict, hash=False)
    names: tuple[str, str] | None = None
    margin: float | None = None

    @property
    def sides(self) -> tuple[str, str]:
        return self.names or (self.a, self.b)

    @property
    def key(self) -> str:
        return Cell(self.problem, self.a, self.threads).key


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of two sides: pairs with a judgement, or a status and the reason.

    ``a_samples[i]`` and ``b_samples[i]`` are seconds, taken one right after the other. ``wrong`` names the side.
    ``implementation`` is what both ran where ``a`` and ``b`` are names of something else.
    """

    key: str
    a: str
    b: str
    threads: int
    status: RowStatus = "ok"
    reason: str = ""
    judgement: Judgement | None = None
    a_samples: tuple[float, ...] = ()
    b_samples: tuple[float, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    implementation: str = ""
    device: str = "cpu"

    def row(self) -> VerdictRow:
        """What tables and output formats say of it."""
        known = ("tokens", "margin")
        head = VerdictRow(
            self.key, self.a, self.b, self.status, self.reason, self.implementation, threads=self.threads,
            margin=float(self.extra.get("margin", 0.0)), tokens=self.extra.get("tokens"),
            a_seconds=median(self.a_samples) if self.a_samples else None,
            b_seconds=median(self.b_samples) if self.b_samples else None,
            extra={
                **{name: self.extra[name] for name in _SHOWN if name not in known and name in self.extra},
                **({"a_samples": self.a_samples, "b_samples": self.b_samples} if self.a_samples else {}),
            },
        )  # fmt: skip
        if self.judgement is None:
            return head
        j = self.judgement
        return replace(
            head, verdict=j.verdict.value, ratio=j.ratio, low=j.interval.low, high=j.interval.high,
            confidence=j.interval.confidence, p=j.p, n_pairs=j.n_pairs, n_confirmed_by=len(j.confirmed_by),
        )  # fmt: skip

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
        what: dict[str, int | float | str] = {"case": self.key, "against": self.b}
        if self.implementation:
            what["baseline"] = self.a
        return Record.make(
            ("compare", what),
            self.implementation or self.a,
            threads=self.threads,
            device=self.device,
            result=_rounded(b / a for a, b in zip(self.a_samples, self.b_samples, strict=True)),
            status="ok" if judgement is not None else _STORED.get(self.status, self.status),
            reason=self.reason,
            unit="ratio",
            direction="higher",
            extra={"compare": about},
        )


def _rounded(values: Iterable[float]) -> list[float]:
    """Six digits: more than any of these figures is worth."""
    return [float(f"{value:.6g}") for value in values]
