"""A verdict from blocks that were taken at other times: no pairs, so that what the machine did in between counts.

A *block* is the median of one fresh process. Of the logarithms of the blocks' seconds, the shift between the two sides
is estimated (Hodges-Lehmann); what it is unsure of has two parts::

    deviation^2 = deviation of the shift^2            from the blocks' rank-sum interval: what differs within a run
                + 2 x deviation between runs^2        two runs, each with its own state of the machine

No number of blocks makes the second part smaller. It is the host's own where runs of one commit were recorded at least
``MIN_RUNS`` times, else ``ASSUMED_BETWEEN``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from .rank_sum import MAX_N, shift, shift_interval
from .statistics import Interval, median
from .verdict import Judgement, Plan, Verdict

# The deviation that hosted runners show from job to job, where nothing is known of this machine.
ASSUMED_BETWEEN = 0.025
# A deviation from fewer is off by half of itself.
MIN_RUNS = 5
# Luck with memory pages, of one process: what a single block is unsure of by itself.
ASSUMED_BLOCK = 0.03
# Fewest blocks a side whose rank-sum interval reaches 95 %.
_MIN_BLOCKS = 4


def judge_unpaired(
    a_seconds: Sequence[float], b_seconds: Sequence[float], plan: Plan, between: float = ASSUMED_BETWEEN
) -> Judgement:
    """What blocks of A and of B say, oldest first; ``between`` is the deviation of the logarithm from run to run. Of
    more than ``MAX_N`` of a side the newest are taken: what they leave unknown is next to nothing beside ``between``.

    ``plan``'s margin, error rate and number of comparisons are used; there are no looks. No fresh pairs can confirm a
    call: it takes an interval that lies beyond the margin as a whole.
    ValueError for no blocks, or times that are not positive.
    """
    if not a_seconds or not b_seconds or min(*a_seconds, *b_seconds) <= 0:
        raise ValueError("blocks are positive times, at least one a side")
    a, b = ([math.log(value) for value in side[-MAX_N:]] for side in (a_seconds, b_seconds))
    normal = NormalDist()
    if min(len(a), len(b)) >= _MIN_BLOCKS:
        within = shift_interval(a, b)
        own = (within.high - within.low) / 2 / normal.inv_cdf((1 + within.confidence) / 2)
    else:
        own = ASSUMED_BLOCK * math.sqrt(1 / len(a) + 1 / len(b))
    deviation = max(math.hypot(own, math.sqrt(2) * between), 1e-9)  # blocks of a coarse clock may all be equal
    centre, edge = shift(a, b), math.log1p(plan.margin)
    half = normal.inv_cdf(1 - plan.alpha / 2) * deviation
    slower, faster = normal.cdf((edge - centre) / deviation), normal.cdf((edge + centre) / deviation)
    p = min(1.0, 2 * min(slower, faster))
    verdict, reason = Verdict.INCONCLUSIVE, ""
    if p <= plan.alpha / plan.n_comparisons:
        verdict = Verdict.REGRESSED if slower < faster else Verdict.IMPROVED
    elif -edge < centre - half and centre + half < edge:
        verdict = Verdict.SAME
    elif p <= plan.alpha:
        reason = f"beyond {plan.margin:.1%} by itself, not among {plan.n_comparisons} comparisons"
    else:
        reason = f"the interval reaches across {plan.margin:.1%}; other times differ by {between:.1%} a run anyway"
    interval = Interval(math.exp(centre - half), math.exp(centre + half), 1 - plan.alpha)
    return Judgement(verdict, math.exp(centre), interval, 0, p, reason)


def between_runs(runs: Iterable[Sequence[Sequence[float]]]) -> float | None:
    """The deviation from run to run of the logarithm of a run's median; None where too few runs say.

    Args:
        runs: of every case (of one commit), its runs, each a sequence of block seconds.
    """
    squares, freedom, n_most = 0.0, 0, 0
    for case in runs:
        middles = [math.log(median(blocks)) for blocks in case if blocks and min(blocks) > 0]
        if len(middles) < 2:
            continue
        mean = math.fsum(middles) / len(middles)
        squares += math.fsum((value - mean) ** 2 for value in middles)
        freedom += len(middles) - 1
        n_most = max(n_most, len(middles))
    return math.sqrt(squares / freedom) if n_most >= MIN_RUNS else None
