"""What it costs to hand values and work to a GPU, measured: copies either way, launches, replays of a graph, waits.

A copy of few bytes, waited for, is its latency; of a copy of many, the time beyond that gives the bandwidth. Launches
are counted in a row, so that each costs what the host takes for it; a wait is what one launch and a wait take more than
a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

from .clock import Clock, system_clock
from .statistics import median

# The operation that records of these readings name.
LINK = "link"

# A step's hidden state is some KiB; from tens of MiB on a copy's start no longer matters.
SMALL_BYTES, LARGE_BYTES = 4 << 10, 64 << 20
LAUNCHES = 200

MEMORIES, DIRECTIONS = ("pinned", "pageable"), ("to_device", "from_device")
LAUNCH, REPLAY, SYNC = "launch", "replay", "sync"


def latency(memory: str, direction: str) -> str:
    return f"{memory}_{direction}_latency"


def bandwidth(memory: str, direction: str) -> str:
    return f"{memory}_{direction}_bandwidth"


COPIES = tuple(product(MEMORIES, DIRECTIONS))
LINK_NAMES = (*(of(*copy) for copy in COPIES for of in (latency, bandwidth)), LAUNCH, REPLAY, SYNC)


class Link(Protocol):
    """What measures: torch on a device through a thin adapter, or made-up numbers in a test."""

    @property
    def name(self) -> str:
        """The device."""

    def copy(self, n_bytes: int, memory: str, direction: str) -> Callable[[], None]:
        """What queues a copy between host memory of that kind and the device."""

    def launch(self) -> Callable[[], None]:
        """What queues a kernel that has next to nothing to do."""

    def replay(self) -> Callable[[], None] | None:
        """What replays a graph of one such kernel; None where there are no graphs."""

    def wait(self) -> None:
        """Returns once everything queued is done."""


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Samples by name (``LINK_NAMES``): seconds, of bandwidths bytes/s."""

    device: str
    samples: Mapping[str, tuple[float, ...]]

    def value(self, name: str) -> float | None:
        """Median of the samples; None where there are none."""
        found = self.samples.get(name)
        return median(found) if found else None

    def transfer_seconds(self, n_bytes: float) -> float | None:
        """A pinned copy that its consumer waits for, the slower way; None where it was not measured."""
        found = []
        for direction in DIRECTIONS:
            start, rate = self.value(latency("pinned", direction)), self.value(bandwidth("pinned", direction))
            if start is None or not rate:
                return None
            found.append(start + n_bytes / rate)
        return max(found)

    def as_dict(self) -> dict[str, Any]:
        return {"device": self.device, **{name: self.value(name) for name in LINK_NAMES}}


def unit_of(name: str) -> str:
    return "bytes/s" if name.endswith("_bandwidth") else "seconds"


def link_costs(link: Link, *, repetitions: int = 5, clock: Clock | None = None) -> LinkCosts:
    """Measures ``link``; every reading ``repetitions`` times."""
    now = (clock or system_clock()).now_ns

    def seconds(work: Callable[[], None], count: int = 1) -> float:
        begin = now()
        for _ in range(count):
            work()
        link.wait()
        return (now() - begin) * 1e-9

    samples: dict[str, list[float]] = {name: [] for name in LINK_NAMES}
    for memory, direction in COPIES:
        small, large = (link.copy(n_bytes, memory, direction) for n_bytes in (SMALL_BYTES, LARGE_BYTES))
        seconds(small), seconds(large)  # first use: pages are touched, contexts made
        for _ in range(repetitions):
            start, whole = seconds(small), seconds(large)
            samples[latency(memory, direction)].append(start)
            if whole > start:
                rate = (LARGE_BYTES - SMALL_BYTES) / (whole - start)
                samples[bandwidth(memory, direction)].append(rate)
    launch, replay = link.launch(), link.replay()
    seconds(launch)
    for _ in range(repetitions):
        one = seconds(launch, LAUNCHES) / LAUNCHES
        samples[LAUNCH].append(one)
        samples[SYNC].append(max(seconds(launch) - one, 0.0))
        if replay is not None:
            samples[REPLAY].append(seconds(replay, LAUNCHES) / LAUNCHES)
    return LinkCosts(link.name, {name: tuple(found) for name, found in samples.items() if found})
