"""Rows of comparisons as JSON fields, and the exit codes that they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbench.core import CheckBroken, ConditionFailed, Inconclusive, InvalidEnvironment, UserError

from .output import plural

if TYPE_CHECKING:
    from kbench.results import VerdictRow
    from kbench.suites import Outcome

# A message names so many cases; all of them are in the table.
_NAMED = 3


def case_fields(row: VerdictRow) -> dict[str, Any]:
    """One case of ``--json``."""
    fields: dict[str, Any] = {
        "case": row.case,
        "a": row.a,
        "b": row.b,
        "status": row.status,
        "reason": row.reason,
        "verdict": row.verdict or None,
        "ratio": row.ratio,
        "interval": None if row.low is None else [row.low, row.high],
        "confidence": row.confidence,
        "n_pairs": row.n_pairs,
        "n_confirmed_by": row.n_confirmed_by,
        "a_seconds": row.a_seconds,
        "b_seconds": row.b_seconds,
        "margin": row.margin,
        # Samples are in the records: here they would drown the rest.
        **{name: value for name, value in row.extra.items() if not name.endswith("_samples")},
    }
    fields |= {"tokens": row.tokens} if row.tokens is not None else {}
    fields |= {"implementation": row.implementation} if row.implementation else {}
    return fields | ({"n_blocks": list(row.n_blocks)} if any(row.n_blocks) else {})


def summary(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A geometric mean for each pair of sides that were compared on several cases."""
    from kbench.measure import Verdict, judge_mean

    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.judgement is not None:
            groups.setdefault((outcome.a, outcome.b), []).append(outcome)
    found = []
    for (a, b), members in groups.items():
        if len(members) == 1:
            continue
        judgements = [outcome.judgement for outcome in members if outcome.judgement is not None]
        verdict, ratio, interval = judge_mean(judgements, members[0].extra["margin"])
        counts = {word.value: sum(j.verdict is word for j in judgements) for word in Verdict}
        found.append(
            {
                "a": a, "b": b, "n_cases": len(members), "verdict": verdict.value, "ratio": ratio,
                "interval": [interval.low, interval.high], "counts": {word: n for word, n in counts.items() if n},
            }
        )  # fmt: skip
    return found


def compared_exit(rows: Sequence[VerdictRow], fail: bool) -> None:
    """Raises for what is wrong, slower (if asked for) or not known; in this order."""
    _broken(rows)
    judged = [row for row in rows if row.verdict]
    if not judged:
        disturbed = [row for row in rows if row.status == "disturbed"]
        if disturbed:
            raise InvalidEnvironment(disturbed[0].reason, where=disturbed[0].case, todo="a quiet machine")
        slow = [row for row in rows if row.status == "slow"]
        if slow:  # the reason says which --max-seconds would do
            raise Inconclusive(slow[0].reason, where=slow[0].case)
        raise UserError("nothing could be compared", where=rows[0].case, accepted="shapes that both sides run",
                        todo=rows[0].reason)  # fmt: skip
    slower = [row for row in judged if row.verdict == "REGRESSED"]
    if fail and slower:
        raise ConditionFailed(f"{slower[0].b} is slower in {len(slower)} of {len(judged)} cases", where=slower[0].case)
    if all(row.verdict == "INCONCLUSIVE" for row in judged):
        raise Inconclusive("no case is known to differ or to be the same", todo="a quiet machine, or --max-seconds")


def checked_exit(rows: Sequence[VerdictRow], *, allow_inconclusive: bool = False) -> None:
    """The exit codes of ``kbench track check``: 5 broken, 1 slower, 4 the machine does not let it be known, 3 not
    known; in this order. A case that is at least known not to be slower passes."""
    _broken(rows)
    slower = [row for row in rows if row.verdict == "REGRESSED"]
    if slower:
        worst = sorted(slower, key=lambda row: -(row.ratio or 0))
        more = f", and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
        told = "; ".join(f"{row.case} takes {row.ratio:.3f} times as long" for row in worst[:_NAMED])
        raise ConditionFailed(f"{plural(len(slower), 'case')} slower than {worst[0].a}: {told}{more}")
    disturbed = [row for row in rows if row.status == "disturbed"]
    judged = [row for row in rows if row.verdict]
    if disturbed and not allow_inconclusive:
        raise InvalidEnvironment(f"{plural(len(disturbed), 'case')} could not be judged: {disturbed[0].reason}",
                                 where=disturbed[0].case, todo="run it again on a quiet machine")  # fmt: skip
    slow = [row for row in rows if row.status == "slow"]
    if disturbed and not judged:
        return
    if not judged and not slow:
        reason = next((row.reason for row in rows if row.reason), "")
        raise InvalidEnvironment("no case could be compared", accepted="cases that both sides have", todo=reason)
    unknown = [row for row in judged if row.verdict == "INCONCLUSIVE" and not row.not_worse]
    unknown += slow
    if unknown and not allow_inconclusive:
        raise Inconclusive(
            f"{len(unknown)} of {plural(len(rows), 'case')} not known: {unknown[0].reason}", where=unknown[0].case,
            todo="a quiet machine, --max-seconds, or --allow-inconclusive",
        )  # fmt: skip


def _broken(rows: Sequence[VerdictRow]) -> None:
    broken = [row for row in rows if row.status in ("wrong", "crashed")]
    if broken:
        first = broken[0]
        raise CheckBroken(f"{len(broken)} of {len(rows)} cases {first.status}: {first.reason}", where=first.case)
