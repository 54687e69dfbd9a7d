"""What this machine can do at best, measured: read-only bandwidth by thread count, arithmetic peaks by type.

A kernel's time alone says little; its share of these says how much is left to win. Data sheets are not used: memory
channels, turbo and neighbours decide what there really is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .statistics import median, relative_spread

# Types whose peak matters for quantized inference: int8 dot products, bf16 and f32 fused multiply-adds.
KINDS = ("int8", "bf16", "f32")

READ_BANDWIDTH = "read_bandwidth"


class Reading(Protocol):
    """One answer of a probe: a rate (bytes/s or op/s), or None and the reason."""

    @property
    def value(self) -> float | None: ...

    @property
    def reason(self) -> str: ...


class Probes(Protocol):
    """What measures: the native module through a thin adapter, or made-up numbers in a test."""

    @property
    def name(self) -> str:
        """Who measures, e.g. ``cpu.avx2``."""

    def read_bandwidth(self, threads: int) -> Reading:
        """Bytes per second that ``threads`` threads read from memory that no cache holds."""

    def arithmetic_peak(self, kind: str, threads: int) -> Reading:
        """Operations per second on registers alone; a multiplication and an addition count as two."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One measured roof: ``name`` is ``read_bandwidth`` or one of KINDS, ``unit`` bytes/s or op/s."""

    name: str
    threads: int
    unit: str
    samples: tuple[float, ...]
    reason: str = ""

    @property
    def value(self) -> float | None:
        """Median of the samples, or None when there are none (``reason`` says why)."""
        return median(self.samples) if self.samples else None

    @property
    def spread(self) -> float:
        """Interquartile range over median; 0 without samples."""
        return relative_spread(self.samples) if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """All roofs of one machine, by ``probes`` (which instruction set measured)."""

    probes: str
    items: tuple[Ceiling, ...]

    def get(self, name: str, threads: int) -> Ceiling | None:
        return next((item for item in self.items if (item.name, item.threads) == (name, threads)), None)

    def best(self, name: str) -> Ceiling | None:
        """The highest roof of that name over the thread counts; None when none was measured."""
        measured = [item for item in self.items if item.name == name and item.samples]
        return max(measured, key=lambda item: item.value or 0.0, default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "probes": self.probes,
            "items": [
                {
                    "name": item.name,
                    "threads": item.threads,
                    "unit": item.unit,
                    "value": item.value,
                    "samples": list(item.samples),
                    "reason": item.reason,
                }
                for item in self.items
            ],
        }


def thread_ladder(max_threads: int) -> tuple[int, ...]:
    """Thread counts to probe: every one up to 8, then steps of about a quarter, always the last."""
    counts, n = [], 1
    while n < max_threads:
        counts.append(n)
        n += 1 if n < 8 else max(2, n // 4)
    return (*counts, max(1, max_threads))


def ceilings(
    probes: Probes,
    thread_counts: Sequence[int],
    *,
    kinds: Sequence[str] = KINDS,
    repetitions: int = 3,
    progress: Callable[[int, int, str], None] | None = None,
) -> Ceilings:
    """Measures bandwidth at every thread count, and each kind's peak at the least and the largest of them.

    Each is the median of ``repetitions`` readings. The rounds are interleaved over the bandwidth points, so that a
    slow moment of the machine does not fall on one of them alone.

    Args:
        progress: called with (readings done, all readings, what comes next).
    """
    counts = sorted(set(thread_counts))
    if not counts or counts[0] < 1 or repetitions < 1:
        raise ValueError("ceilings need at least one positive thread count and one repetition")
    ends = sorted({counts[0], counts[-1]})
    points = [(READ_BANDWIDTH, n) for n in counts] + [(kind, n) for kind in kinds for n in ends]
    samples: dict[tuple[str, int], list[float]] = {point: [] for point in points}
    reasons: dict[tuple[str, int], str] = {}
    for round_ in range(repetitions):
        for i, (name, threads) in enumerate(points):
            if progress is not None:
                progress(round_ * len(points) + i, repetitions * len(points), f"{name}, {threads} threads")
            if (name, threads) in reasons:
                continue
            if name == READ_BANDWIDTH:
                reading = probes.read_bandwidth(threads)
            else:
                reading = probes.arithmetic_peak(name, threads)
            if reading.value is None:
                reasons[name, threads] = reading.reason or "no reading"
            else:
                samples[name, threads].append(reading.value)
    if progress is not None:
        progress(repetitions * len(points), repetitions * len(points), "done")
    return Ceilings(
        probes.name,
        tuple(
            Ceiling(
                name=name,
                threads=threads,
                unit="bytes/s" if name == READ_BANDWIDTH else "op/s",
                samples=tuple(samples[name, threads]),
                reason=reasons.get((name, threads), "") if not samples[name, threads] else "",
            )
            for name, threads in points
        ),
    )
