"""What was found out about one case on two sides, as rows that every table and output format is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

RowStatus = Literal[
    "ok",  # judged: verdict, ratio and interval are there
    "unsupported",  # a side cannot run it
    "wrong",  # a side's result is wrong
    "crashed",  # a side died
    "slow",  # it takes longer than the time given
    "disturbed",  # the machine was not left alone, again and again: nothing can be said
    "unlike",  # the sides do not measure the same thing; the reason names what differs
    "new",  # only B has it
    "gone",  # only A has it
]
BROKEN: frozenset[str] = frozenset({"wrong", "crashed"})


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One case. ``a`` is the baseline, ``b`` what is compared with it.

    Attributes:
        case: the case's key, e.g. ``linear(quant=Q4_K,n=1536,k=5120,tokens=1,threads=2)``.
        a, b: what the sides are called: implementations, engines, files, revisions (``main``, ``HEAD``).
        implementation: what both sides ran, where that is no side's name.
        verdict: REGRESSED (B is slower), IMPROVED, SAME, INCONCLUSIVE; "" unless ``status`` is ``ok``.
        ratio, low, high: of B's seconds over A's, with the interval that covers it with ``confidence``.
        n_pairs: how many pairs; 0 for stored blocks, which are no pairs, and whose interval is wider.
        n_blocks: of stored blocks, how many each side has.
        n_confirmed_by: of fresh pairs that confirmed the call.
        a_seconds, b_seconds: medians, of a call, or of ``tokens`` tokens where that is given.
        margin: the least change that is called one here, as a share: never below the case's own noise floor.
        extra: everything else, e.g. ``subset``, ``logits_apart``; of pairs ``a_samples`` and ``b_samples``, seconds in
            the order taken.
    """

    case: str
    a: str
    b: str
    status: RowStatus = "ok"
    reason: str = ""
    implementation: str = ""
    verdict: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    p: float | None = None
    n_pairs: int = 0
    n_blocks: tuple[int, int] = (0, 0)
    n_confirmed_by: int = 0
    a_seconds: float | None = None
    b_seconds: float | None = None
    margin: float = 0.0
    tokens: int | None = None
    threads: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def not_worse(self) -> bool:
        """B is known not to be slower by more than the margin, whatever else is unknown."""
        return self.high is not None and self.high < 1 + self.margin

    @property
    def outcome(self) -> str:
        """The verdict, or the status where there is none."""
        return self.verdict or self.status

    def as_dict(self) -> dict[str, Any]:
        """For JSON; ``extra``'s fields are on the same level."""
        plain = asdict(self)
        extra = plain.pop("extra")
        return {**plain, "n_blocks": list(self.n_blocks), **{k: v for k, v in extra.items() if k not in plain}}


def by_importance(rows: Iterable[VerdictRow]) -> list[VerdictRow]:
    """What is broken, then what is slower (the most first), then what is not known, then the rest."""
    order = ("wrong", "crashed", "REGRESSED", "disturbed", "INCONCLUSIVE", "unlike", "slow", "unsupported", "gone",
             "new", "IMPROVED", "SAME")  # fmt: skip
    rank = {word: position for position, word in enumerate(order)}
    return sorted(rows, key=lambda row: (rank.get(row.outcome, len(order)), -(row.ratio or 0.0)))
