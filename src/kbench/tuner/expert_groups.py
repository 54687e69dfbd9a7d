"""A layer's routed experts on both sides: the most visited on a GPU, the others on the host.

Experts are ordered by how often they are visited and cut into groups of equal size; a GPU gets the first
so many groups. A call then forks and joins::

    host  ..............[ x, ids, weights ]....[ experts on the host ]........
    gpu   [router][ map ][ experts on the GPU ][ shared experts ]....[ + ][ add ]

Both sides take part in every call, for a graph holds them whatever is chosen, and each leaves out what is not there.

How many of a token's experts lie on the host is chance. Everything else in the layer takes what it takes, so that the
time is a function of two numbers only, the seconds ``h`` and ``g`` of the two parts. The longest way through the
schedule goes through one of them or none::

    T(h, g) = max(base, host + h, gpu + g)

Three runs of the schedule tell the three constants, once for all groups, all layers with the same shapes, and every
outcome of chance. Of one token the outcomes are how many of its experts lie on the host; of several, that each side has
its mean share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .visits import Part, Visits

# A finer cut brings little: an eighth of an expert layer of DeepSeek-V2 is 300 MB.
GROUPS = 8

# Seconds of the schedule when the host's part and the GPU's part take so long.
Makespan = Callable[[float, float], float]


def group_bounds(experts: int, groups: int = GROUPS) -> tuple[int, ...]:
    """How many of the most visited experts the first 1, 2, ... groups hold; not all of them."""
    bounds = {round(experts * group / groups) for group in range(1, groups)}
    return tuple(sorted(bounds - {0, experts}))


@dataclass(frozen=True, slots=True)
class Fork:
    """Seconds of a stage as a function of those of its two parts."""

    base: float
    host: float
    gpu: float

    @classmethod
    def of(cls, makespan: Makespan) -> Fork:
        base = makespan(0.0, 0.0)
        # Longer than everything else together, and no longer: what is subtracted again must keep its digits.
        long = base or 1.0
        return cls(base, makespan(long, 0.0) - long, makespan(0.0, long) - long)

    def seconds(self, host: float, gpu: float) -> float:
        return max(self.base, self.host + host, self.gpu + gpu)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call may come to: with this chance, these parts of its work fall to either side."""

    chance: float
    host: Part
    gpu: Part


def outcomes(visits: Visits, on_gpu: int, tokens: int) -> Iterator[Outcome]:
    """Of a call of ``tokens`` tokens when the ``on_gpu`` most visited experts are on a GPU; chances add up to 1."""
    k = visits.top_k
    if tokens == 1:
        for n, chance in enumerate(visits.chances(on_gpu).tolist()):
            if chance > 0:
                yield Outcome(chance, Part(n / k, n / k, 0.0), Part(1 - n / k, 1 - n / k, 0.0))
        return
    hot, cold = visits.hot(tokens, on_gpu), visits.cold(tokens, on_gpu)
    yield Outcome(1.0, _on_average(cold), _on_average(hot))


def _on_average(part: Part) -> Part:
    """Of all calls, those included that ask nothing of it."""
    return Part(part.visits * (1 - part.nobody), part.distinct * (1 - part.nobody), 0.0)
