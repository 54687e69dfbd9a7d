"""A layer's routed experts on both sides: the most visited on a GPU, the others on the host.

Experts are ordered by how often they are visited and cut into groups of equal size; a GPU gets the first
so many groups. A call then forks and joins::

    host  ......[ x, ids, weights ]....[ experts on the host ]........
    gpu   [router][ experts on the GPU ][ shared experts ]....[ + ][ add ]

How many of a token's experts lie on the host is chance, and as soon as one does, the layer waits for the crossing there
and back. Everything else in the layer takes what it takes, so that the time is a function of two numbers only, the
seconds ``h`` and ``g`` of the two parts. The longest way through the schedule goes through one of them or none::

    T(h, g) = max(base, host + h, gpu + g)

Three runs of the schedule tell the three constants, once for all groups, all layers with the same shapes, and every
outcome of chance. Of one token the outcomes are how many of its experts lie on the host; of several, that all of their
experts lie on one side, or else that each side has its mean share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .visits import Part, Visits

# A finer cut brings little: an eighth of an expert layer of DeepSeek-V2 is 300 MB.
GROUPS = 8

# Seconds of the schedule when the host's part and the GPU's part take so long; None: there is no such part.
Makespan = Callable[["float | None", "float | None"], float]


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
    def of(cls, makespan: Makespan, on_host: bool, on_gpu: bool) -> Fork:
        """With the parts that are there."""
        nothing = (0.0 if on_host else None, 0.0 if on_gpu else None)
        base = makespan(*nothing)
        # Longer than everything else together, and no longer: what is subtracted again must keep its digits.
        long = base or 1.0
        host = makespan(long, nothing[1]) - long if on_host else 0.0
        gpu = makespan(nothing[0], long) - long if on_gpu else 0.0
        return cls(base, host, gpu)

    def seconds(self, host: float = 0.0, gpu: float = 0.0) -> float:
        return max(self.base, self.host + host, self.gpu + gpu)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call may come to: with this chance, these parts of its work fall to either side (None: nothing)."""

    chance: float
    host: Part | None
    gpu: Part | None


def outcomes(visits: Visits, on_gpu: int, tokens: int) -> Iterator[Outcome]:
    """Of a call of ``tokens`` tokens when the ``on_gpu`` most visited experts are on a GPU; chances add up to 1."""
    k = visits.top_k
    if tokens == 1:
        for n, chance in enumerate(visits.chances(on_gpu).tolist()):
            if chance > 0:
                host, gpu = Part(n / k, n / k, 0.0), Part(1 - n / k, 1 - n / k, 0.0)
                yield Outcome(chance, host if n else None, gpu if n < k else None)
        return
    gpu, host, whole = visits.hot(tokens, on_gpu), visits.cold(tokens, on_gpu), visits.whole(tokens)
    yield Outcome(host.nobody, None, whole)
    yield Outcome(gpu.nobody, whole, None)
    yield Outcome(max(0.0, 1 - host.nobody - gpu.nobody), host, gpu)
