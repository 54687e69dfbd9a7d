"""A stopping rule that gives up on what has clearly lost."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from .statistics import median_interval_sorted
from .stopping import StoppingRule

# The fewest samples whose range covers the median with 95 %: 1 - 2 / 2^6. Before that nothing is certain.
_MIN_SAMPLES = 6


@dataclass(slots=True)
class Hopeless:
    """``rule``, but stops as soon as the 95 % interval of the median lies above ``limit_seconds``.

    What was sampled stays an honest measurement of fewer samples: the interval says so, and that it is slower than the
    limit is as certain as any interval here.
    """

    rule: StoppingRule
    limit_seconds: float
    _ordered: list[float] = field(default_factory=list, init=False, repr=False)
    _reason: str = field(default="", init=False, repr=False)

    def start(self) -> None:
        self._ordered.clear()
        self._reason = ""
        self.rule.start()

    def add(self, sample_seconds: float, elapsed_seconds: float) -> None:
        insort(self._ordered, sample_seconds)
        self.rule.add(sample_seconds, elapsed_seconds)
        n = len(self._ordered)
        if n >= _MIN_SAMPLES and not self.rule.done():
            low = median_interval_sorted(self._ordered).low
            if low > self.limit_seconds:
                self._reason = f"hopeless: median over {low:.3g} s after {n} samples, limit {self.limit_seconds:.3g} s"

    def done(self) -> bool:
        return bool(self._reason) or self.rule.done()

    @property
    def reason(self) -> str:
        return self._reason or self.rule.reason
