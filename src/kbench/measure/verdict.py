"""What pairs of times say about two sides: faster, slower, the same, or not yet known.

Of each pair ``d = log(seconds of B / seconds of A)`` is looked at: above 0, B is slower. Its centre is the
Hodges-Lehmann estimate, with the exact signed-rank interval. ``margin`` is the change that is worth talking about; a
call says that something changed (the interval leaves 0 out) and that it is worth it (the estimate lies beyond)::

                     -margin          0          +margin
    IMPROVED     |------*-----|       :            :
    SAME                 :        |---*-----|      :
    REGRESSED            :            :   |--------:-*--------|
    INCONCLUSIVE         :            :   |-----*--:---|
    INCONCLUSIVE         :        |---:------------:--*-----------|

Pairs are added at declared *looks* while the answer is INCONCLUSIVE. Looking again and again would make a chance find
likely; so each look has its own share of the error rate, and the shares add up to ``alpha``. A call (IMPROVED or
REGRESSED) is confirmed by as many fresh pairs before it is made. With several comparisons side by side the rate is
shared by them too (Bonferroni): exact p-values halve with every pair, so that twenty comparisons cost about four more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from .signed_rank import chance_beyond, interval_of_averages, walsh_averages
from .statistics import Interval, median


class Verdict(Enum):
    """Of B against A, by time: ``REGRESSED`` means that B is slower by more than the margin."""

    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def is_call(self) -> bool:
        """Whether it says that something changed."""
        return self in (Verdict.IMPROVED, Verdict.REGRESSED)


@dataclass(frozen=True, slots=True)
class Plan:
    """How many pairs, and how sure.

    Attributes:
        margin: the least change of interest, as a share: 0.03 for 3 %, a factor of 1.03 in either direction.
        looks: pairs after which the answer is looked for. Six are the least that any interval of 95 % takes.
        alpha: chance of a call at all looks together where nothing changed, before confirmation.
        n_comparisons: how many stand side by side: each gets its part of ``alpha``.
        confirm: the share of fresh pairs' chance with which a call is believed: one-sided, beyond half the margin.
    """

    margin: float = 0.03
    looks: tuple[int, ...] = (12, 24, 48, 96, 160)
    alpha: float = 0.05
    n_comparisons: int = 1
    confirm: float = 0.10

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin is {self.margin}, accepted: a share from 0 to below 1")
        if not self.looks or self.looks[0] < 6 or any(b <= a for a, b in zip(self.looks, self.looks[1:], strict=False)):
            raise ValueError(f"looks are {self.looks}, accepted: growing numbers from 6")

    def share(self, look: int) -> float:
        """What look number ``look`` (from 0) has of the error rate: later ones, which see more, have more."""
        return (look + 1) / sum(range(1, len(self.looks) + 1))


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer with its reasons. ``ratio`` and ``interval`` are of B's seconds over A's.

    ``interval`` covers the ratio with its ``confidence`` at this look, which is more than 95 % because others may
    follow; ``p`` is the two-sided chance of such ranks if nothing had changed, not corrected for anything.
    """

    verdict: Verdict
    ratio: float
    interval: Interval
    n_pairs: int
    p: float
    reason: str = ""
    log_ratios: tuple[float, ...] = field(default=(), repr=False)
    confirmed_by: tuple[float, ...] = field(default=(), repr=False)


def judge(log_ratios: Sequence[float], plan: Plan, look: int | None = None) -> Judgement:
    """What ``log_ratios`` say at look number ``look``; None: they are all that there is, and nobody looked before."""
    n = len(log_ratios)
    averages = walsh_averages(log_ratios)
    alpha = plan.alpha if look is None else plan.alpha * plan.share(look)
    interval = interval_of_averages(averages, n, 1 - alpha)
    edge, centre = math.log1p(plan.margin), median(averages.tolist())
    slower, faster = chance_beyond(averages, n, 0.0)[0], chance_beyond(averages, n, 0.0)[1]
    p = min(1.0, 2 * min(slower, faster))
    verdict, reason = Verdict.INCONCLUSIVE, ""
    if p <= alpha / plan.n_comparisons and abs(centre) > edge:
        verdict = Verdict.REGRESSED if centre > 0 else Verdict.IMPROVED
    elif interval.confidence >= 1 - alpha and -edge < interval.low and interval.high < edge:
        verdict = Verdict.SAME
    elif p <= alpha and abs(centre) > edge:
        reason = f"a change by itself, not among {plan.n_comparisons} comparisons"
    elif p <= alpha:
        reason = f"a change; the interval reaches across {plan.margin:.1%}"
    else:
        reason = f"the interval reaches across {plan.margin:.1%}"
    shown = Interval(math.exp(interval.low), math.exp(interval.high), interval.confidence)
    return Judgement(verdict, math.exp(centre), shown, n, p, reason, tuple(log_ratios))


def confirmed(call: Judgement, fresh: Sequence[float], plan: Plan) -> bool:
    """Whether fresh pairs lie beyond half the margin on the side that ``call`` says: they were started anew, and their
    own luck would be as likely to point the other way."""
    edge = math.log1p(plan.margin / 2)
    if call.verdict is Verdict.REGRESSED:
        return chance_beyond(walsh_averages(fresh), len(fresh), edge)[0] <= plan.confirm
    return chance_beyond(walsh_averages(fresh), len(fresh), -edge)[1] <= plan.confirm


def decide(
    take: Callable[[int], Sequence[float]],
    plan: Plan,
    *,
    take_fresh: Callable[[int], Sequence[float]] | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Judgement:
    """``decide_together`` of one series: ``take`` gives a number for each pair."""

    def rows(source: Callable[[int], Sequence[float]]) -> Callable[[int], Sequence[Sequence[float]]]:
        return lambda n: [(value,) for value in source(n)]

    fresh = rows(take_fresh) if take_fresh is not None else None
    (judgement,) = decide_together(rows(take), plan, take_fresh=fresh, out_of_time=out_of_time)
    return judgement


def decide_together(
    take: Callable[[int], Sequence[Sequence[float]]],
    plan: Plan,
    *,
    take_fresh: Callable[[int], Sequence[Sequence[float]]] | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> list[Judgement]:
    """Takes pairs until they say something, the looks are used up, or time is. A pair may tell of several things at
    once (prefill and decode): there is a judgement of each, and pairs are taken until the last is made.

    Args:
        take: ``n`` more pairs in the order taken; of each, for every thing, the logarithm of B's seconds over A's.
        take_fresh: the same after starting the sides anew, for confirmation (luck with memory pages lasts as long as a
            process); default ``take``.
        out_of_time: asked before each look but the first.

    An unconfirmed call goes on to the next look; the pairs of its confirmation are not counted with the others.
    """
    rows: list[Sequence[float]] = []
    final: dict[int, Judgement] = {}
    open_ones: dict[int, Judgement] = {}
    for look, n in enumerate(plan.looks):
        if rows and out_of_time():
            for thing, known in open_ones.items():
                reason = f"time is over after {known.n_pairs} pairs; {known.reason}"
                open_ones[thing] = replace(known, reason=reason)
            break
        rows += take(n - len(rows))
        columns = list(zip(*rows, strict=True))
        open_ones = {i: judge(column, plan, look) for i, column in enumerate(columns) if i not in final}
        calls = {i: judgement for i, judgement in open_ones.items() if judgement.verdict.is_call}
        fresh = list(zip(*(take_fresh or take)(n), strict=True)) if calls else []
        for i, judgement in calls.items():
            judgement = replace(judgement, confirmed_by=fresh[i])
            if not confirmed(judgement, fresh[i], plan):
                reason = f"{judgement.verdict.value} was not confirmed by {n} fresh pairs"
                judgement = replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=reason)
            open_ones[i] = judgement
        final |= {i: judgement for i, judgement in open_ones.items() if judgement.verdict is not Verdict.INCONCLUSIVE}
        open_ones = {i: judgement for i, judgement in open_ones.items() if i not in final}
        if not open_ones:
            break
    return [found for _, found in sorted((final | open_ones).items())]


def geometric_mean(judgements: Sequence[Judgement], confidence: float = 0.95) -> tuple[float, Interval]:
    """Of the ratios, with an interval for what measuring left unknown: of these cases, not of others like them.

    Each estimate is about normal; the width of its interval, over the quantile of its confidence, is its deviation.
    ValueError when there are none.
    """
    from statistics import NormalDist

    if not judgements:
        raise ValueError("no comparisons")
    normal = NormalDist()
    centre = math.fsum(math.log(j.ratio) for j in judgements) / len(judgements)
    variance = 0.0
    for j in judgements:
        z = normal.inv_cdf((1 + min(max(j.interval.confidence, 0.5), 1 - 1e-9)) / 2)
        variance += ((math.log(j.interval.high) - math.log(j.interval.low)) / 2 / z) ** 2
    half = normal.inv_cdf((1 + confidence) / 2) * math.sqrt(variance) / len(judgements)
    return math.exp(centre), Interval(math.exp(centre - half), math.exp(centre + half), confidence)


def judge_mean(judgements: Sequence[Judgement], margin: float) -> tuple[Verdict, float, Interval]:
    """The verdict of the geometric mean, which a change of no single case may explain. No fresh pairs confirm it: a call
    takes an interval that lies beyond the margin as a whole."""
    ratio, interval = geometric_mean(judgements)
    edge = 1 + margin
    if interval.low > edge:
        return Verdict.REGRESSED, ratio, interval
    if interval.high < 1 / edge:
        return Verdict.IMPROVED, ratio, interval
    inside = 1 / edge < interval.low and interval.high < edge
    return Verdict.SAME if inside else Verdict.INCONCLUSIVE, ratio, interval
