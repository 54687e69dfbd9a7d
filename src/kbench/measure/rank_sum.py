"""The Hodges-Lehmann shift of two samples that are no pairs, with the interval of the Mann-Whitney rank-sum test.

``m`` values and ``n`` others have ``m n`` differences. Their median estimates by how much the others are larger; as the
number of positive ones has one known distribution where only a shift is between the two, ranks of the sorted
differences enclose the shift with an exact probability, whatever the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .statistics import Interval, median

# Of either side: the exact distribution takes about m^2 n additions, and blocks are tens.
MAX_N = 100


def shift(a: Sequence[float], b: Sequence[float]) -> float:
    """The median of all ``b_j - a_i``. ValueError when either is empty."""
    return median([y - x for x in a for y in b])


@lru_cache(maxsize=64)
def cumulative(m: int, n: int) -> tuple[float, ...]:
    """``P(U <= u)`` for ``u`` = 0 ... m n where nothing differs: every order of ``m`` and ``n`` values is as likely.

    The counts are the coefficients of the Gaussian binomial, the product of ``(1 - q^(n+i)) / (1 - q^i)``: integers.
    """
    size = m * n + 1
    counts = [1] + [0] * (size - 1)
    for i in range(1, m + 1):
        for u in range(size - 1, n + i - 1, -1):
            counts[u] -= counts[u - n - i]
        for u in range(i, size):
            counts[u] += counts[u - i]
    total, below, found = sum(counts), 0, []
    for count in counts:
        below += count
        found.append(below / total)
    return tuple(found)


def shift_interval(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Interval:
    """The narrowest interval of differences that covers the shift with at least ``confidence``.

    With too few values (under four a side for 95 %) none does, and the whole range is given with the coverage it has.
    ValueError for none, or over ``MAX_N``.
    """
    if not (1 <= len(a) <= MAX_N and 1 <= len(b) <= MAX_N):
        raise ValueError(f"{len(a)} and {len(b)} values, accepted: 1 to {MAX_N} each")
    differences = sorted(y - x for x in a for y in b)
    below = cumulative(len(a), len(b))
    # The largest k with 2 P(U <= k - 1) <= 1 - confidence.
    k = 0
    while 2 * below[k] <= 1 - confidence + 1e-12:
        k += 1
    if not k:
        return Interval(differences[0], differences[-1], max(0.0, 1 - 2 * below[0]))
    return Interval(differences[k - 1], differences[-k], 1 - 2 * below[k - 1])
