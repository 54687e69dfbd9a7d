"""Which experts tokens visit: uniform unless a histogram was recorded, and what that means for a part of them.

A token visits ``top_k`` different experts. With visits spread evenly, how many of them are among a given ``m`` is
hypergeometric. With other probabilities the model is conditional Poisson sampling: of all ways to draw ``top_k``
different experts such that each is visited as often as it was seen, the one that assumes nothing else. Its chances are
sums of products of odds, by a recursion over the experts (Chen, Dempster and Liu 1994, Biometrika 81):

    R(n, S)  sum over all n-element subsets of S of the product of their odds
    P(n of a token's experts in S) = R(n, S) R(k - n, not S) / R(k, all)

Tokens of a batch are taken to choose independently of each other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbench.core import expected_experts

Array = npt.NDArray[np.float64]

# Odds are fitted until every expert is visited as often as it was seen, to this; a recorded share is coarser.
_FIT = 1e-9
_MAX_ROUNDS = 200

# An expert that every token visits has infinite odds: it is none to draw.
_CERTAIN = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Part:
    """What falls to a part of a layer's experts in one call: shares of all visits, and of the distinct experts that
    the call visits when visits are spread evenly. ``nobody``: the chance that it falls to none of them."""

    visits: float
    distinct: float
    nobody: float


class Visits:
    """One layer's visits. ``shares`` is the probability that a token visits each expert, the most visited first;
    ``order`` are the numbers of those experts."""

    def __init__(self, top_k: int, shares: Sequence[float]) -> None:
        """``shares`` in any order; they are scaled to add up to ``top_k``.

        Raises:
            ValueError: they cannot be: one is negative, or would be visited more than once by every token.
        """
        unsorted = np.asarray(shares, np.float64)
        order = np.argsort(-unsorted, kind="stable")
        given = unsorted[order]
        scaled: Array = given * (top_k / given.sum())
        if not ((scaled >= 0) & (scaled < 1 + _FIT)).all():  # nor is anything that is no number
            raise ValueError(f"visits to {len(given)} experts, {top_k} a token, of {given[:1]} at the most")
        self.top_k, self.experts, self.shares = top_k, len(given), np.minimum(scaled, 1.0)
        self.order: tuple[int, ...] = tuple(order.tolist())
        self._certain = int(np.count_nonzero(self.shares > _CERTAIN))

    @functools.cached_property
    def odds(self) -> Array:
        """Of the experts that are drawn. Fitted when somebody wants them: who moves experts as one does not."""
        return _odds_of(self.shares[self._certain :], self.top_k - self._certain)

    @functools.cached_property
    def _products(self) -> tuple[Array, Array]:
        """R(n, the first m experts of those that are drawn), and of the others."""
        drawn = self.top_k - self._certain
        return _sums(self.odds, drawn), _sums(self.odds[::-1], drawn)[::-1]

    @classmethod
    def uniform(cls, experts: int, top_k: int) -> Visits:
        return cls(top_k, [top_k / experts] * experts)

    @property
    def key(self) -> tuple[float, ...]:
        """What tells layers apart that are visited differently."""
        return tuple(self.shares.tolist())

    def chances(self, m: int) -> Array:
        """Of one token: the probability that n = 0..top_k of its experts are *not* among the ``m`` most visited."""
        drawn, at = self.top_k - self._certain, max(0, m - self._certain)
        first, rest = self._products
        weights = np.array([first[at, drawn - n] * rest[at, n] for n in range(drawn + 1)])
        chances = np.zeros(self.top_k + 1)
        outside = max(0, self._certain - m)  # visited by every token, and not among the m
        chances[outside : outside + drawn + 1] = weights / weights.sum()
        return chances

    def distinct(self, tokens: int, first: int = 0, stop: int | None = None) -> float:
        """Distinct experts that ``tokens`` tokens visit among those from the ``first`` most visited to ``stop``."""
        return float((1 - (1 - self.shares[first:stop]) ** tokens).sum())

    def whole(self, tokens: int) -> Part:
        """What a call of ``tokens`` tokens asks of all experts."""
        return Part(1.0, self.distinct(tokens) / expected_experts(self.experts, self.top_k, tokens), 0.0)

    def hot(self, tokens: int, m: int) -> Part:
        """What falls to the ``m`` most visited when it is not nothing, of a call of ``tokens`` tokens."""
        return self._part(tokens, 0, m, float(self.chances(m)[self.top_k]))

    def cold(self, tokens: int, m: int) -> Part:
        """And what falls to all but the ``m`` most visited."""
        return self._part(tokens, m, self.experts, float(self.chances(m)[0]))

    def _part(self, tokens: int, first: int, stop: int, none_of_a_token: float) -> Part:
        nobody = none_of_a_token**tokens
        if nobody == 1:
            return Part(0.0, 0.0, 1.0)
        visits = float(self.shares[first:stop].sum()) / self.top_k
        distinct = self.distinct(tokens, first, stop) / expected_experts(self.experts, self.top_k, tokens)
        return Part(min(1.0, visits / (1 - nobody)), distinct / (1 - nobody), nobody)

    def mean(self, others: Sequence[Visits]) -> Visits:
        """Of this layer and ``others``, rank by rank: what the experts of all of them do on average."""
        return Visits(self.top_k, np.mean([v.shares for v in (self, *others)], axis=0).tolist())


def _sums(odds: Array, k: int) -> Array:
    """``R(n, the first m)`` for m = 0..experts and n = 0..k: ``[experts + 1, k + 1]``."""
    table = np.zeros((len(odds) + 1, k + 1))
    table[0, 0] = 1.0
    for m, odd in enumerate(odds):
        table[m + 1] = table[m]
        table[m + 1, 1:] += odd * table[m, :-1]
    return table


def _odds_of(shares: Array, k: int) -> Array:
    """Odds such that ``k`` different experts are drawn with ``shares`` as their probabilities.

    Scaled so that sums of products of ``k`` of them stay numbers.
    """
    odds: Array = shares / (1 - shares)
    if not k:
        return odds
    odds *= k / odds.sum()
    if np.ptp(shares) < _FIT:
        return odds
    for _ in range(_MAX_ROUNDS):
        first, rest = _sums(odds, k), _sums(odds[::-1], k)[::-1]
        # All k - 1 others, without the expert itself: from before it and from behind it.
        without = np.einsum("mi,mi->m", first[:-1, :k], rest[1:, k - 1 :: -1])
        seen = odds * without / first[-1, k]
        if np.abs(seen - shares).max() < _FIT:
            break
        # Experts that nobody visits have odds of 0 and stay there.
        wrong = np.divide(shares * (1 - seen), seen * (1 - shares), out=np.zeros_like(seen), where=seen > 0)
        # An expert's chance follows its own odds among many experts, and moves twice as far between two: with two
        # thirds of the way either overshoots or falls short by a third.
        odds *= wrong ** (2 / 3)
        odds *= k / odds.sum()
    return odds
