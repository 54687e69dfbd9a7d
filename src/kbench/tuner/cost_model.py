"""What a call costs on each device: measured where the device is here, modelled where it is not.

No prediction beats the roof: a time that is shorter than reading the weights at the measured bandwidth, or than the
arithmetic at the measured peak, came out of a cache or from noise, and is raised to the roof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kbench.core import AUTO, CPU, PLANNED, Device, Problem, Unsupported, expected_experts, work
from kbench.measure import quartiles
from kbench.results import Record

from .availability import GPU_IMPLEMENTATION, KBENCH, Availability
from .packed import PackedRatios
from .plan import Key
from .profile import BAND, MEMORY_EFFICIENCY, GpuProfile
from .proxy import proxy
from .visits import Part

MEASURED, MODELLED = "measured", "modelled"

# More threads are kept unless fewer are faster by this much: below it the difference is noise, and one pool whose size
# does not change between calls is simpler to run.
WORTH_FEWER_THREADS = 0.05

# Of the fastest arithmetic (8-bit products), what float32 element by element reaches on the same vectors.
PLANNED_EFFICIENCY = 0.1

# And what products with weights reach that are unpacked on the way, activations in two planes of 8 bits.
PRODUCT_EFFICIENCY = 0.4

# Before and after the work itself: threads meet.
_CALL_SECONDS = 3e-6

# A router's choice among a part of the experts: so many small operations of torch, 5 us each from Python.
_MAP_CALLS = 4
_MAP_SECONDS = _MAP_CALLS * 5e-6


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one call with the quartiles of its samples (or the band of a model) as ``low`` and ``high``.

    ``key`` is the measured case, which may be a stand-in for a larger problem.
    """

    seconds: float
    low: float
    high: float
    source: str
    implementation: str
    threads: int | None = None
    key: str = ""

    def scaled(self, factor: float) -> Cost:
        return replace(self, seconds=self.seconds * factor, low=self.low * factor, high=self.high * factor)

    def at_least(self, seconds: float) -> Cost:
        return replace(
            self, seconds=max(self.seconds, seconds), low=max(self.low, seconds), high=max(self.high, seconds)
        )


@dataclass(frozen=True, slots=True)
class Roof:
    """The host's measured limits by thread count: bytes/s of reading memory, operations/s of the fastest type."""

    bandwidth: Mapping[int, float] = field(default_factory=dict)
    peak: Mapping[int, float] = field(default_factory=dict)

    def seconds(self, problem: Problem, threads: int) -> float:
        """The least time that ``problem`` can take; 0 where nothing was measured."""
        size = work(problem)
        bandwidth, peak = self.limits(threads)
        moving = size.weight_bytes / bandwidth if bandwidth else 0.0
        return max(moving, size.flops / peak if peak else 0.0)

    def limits(self, threads: int) -> tuple[float, float]:
        """Bandwidth and peak of ``threads`` threads; 0 where nothing was measured.

        The limit with fewer threads than were probed is that of the next count above: no bound is too strict.
        """
        bandwidth, peak = (
            min((value for n, value in limits.items() if n >= threads), default=0.0)
            for limits in (self.bandwidth, self.peak)
        )
        return bandwidth, peak


_NO_GPUS: Mapping[Device, GpuProfile] = {}


class CostModel:
    """Prices problems on devices from records and, for GPUs that are not here, from their profiles."""

    def __init__(
        self,
        records: Iterable[Record],
        *,
        threads: Iterable[int],
        profiles: Mapping[Device, GpuProfile] = _NO_GPUS,
        roof: Roof | None = None,
        assumes: bool = False,
        availability: Availability = KBENCH,
    ) -> None:
        """``threads`` are the counts that may be chosen; of several records of a case the last one counts, and one
        that was timed in place before all others.

        ``assumes``: what no record tells is priced at a share of ``roof``. ``availability``: what runs on a GPU.
        """
        self.profiles, self.availability, self.assumes = profiles, availability, assumes
        self.threads = tuple(sorted(threads))
        self.roof = roof or Roof()
        self._table: dict[Key, Record] = {}
        # What ran with other kernel parameters than the declared ones is no price of what a rule without a block runs.
        records = [record for record in records if not record.extra.get("block")]
        self.packed = PackedRatios(records)
        for record in records:
            if record.status == "ok" and record.samples and record.threads and record.unit == "seconds":
                key = (record.core_problem(), record.implementation, record.threads)
                if key not in self._table or _tells(record) >= _tells(self._table[key]):
                    self._table[key] = record
        self._by_problem: dict[tuple[Problem, int], list[str]] = {}
        for problem, name, n in self._table:
            self._by_problem.setdefault((problem, n), []).append(name)
        # A model has some thirty different problems and a thousand calls, and each is priced many times.
        self._known: dict[tuple[Problem, Device, int], Cost | None] = {}
        self._sizes: dict[tuple[Problem, Device, int], int] = {}

    @property
    def records(self) -> tuple[Record, ...]:
        """Those that count."""
        return tuple(self._table.values())

    def cost(self, problem: Problem, device: Device, threads: int) -> Cost | None:
        """The cheapest way to run ``problem`` on ``device``; None when there is none.

        ``threads`` matters on the CPU only.
        """
        key = (problem, device, threads)
        if key not in self._known:
            on_cpu = device == CPU
            self._known[key] = self._on_cpu(problem, threads) if on_cpu else self._on_gpu(problem, device)
        return self._known[key]

    def _on_gpu(self, problem: Problem, device: Device) -> Cost | None:
        if device not in self.profiles or self.availability.why_not(problem.op, device):
            return None
        launches = _MAP_CALLS if problem.op == "expert_map" else 1
        seconds = launches * self.profiles[device].seconds(work(problem))
        return Cost(seconds, seconds * (1 - BAND), seconds * (1 + BAND), MODELLED, GPU_IMPLEMENTATION)

    def _on_cpu(self, problem: Problem, threads: int) -> Cost | None:
        if problem.op in PLANNED:
            return self._from_the_roof(problem, threads)
        if problem.op == "expert_map":
            return Cost(_MAP_SECONDS, _MAP_SECONDS * (1 - BAND), _MAP_SECONDS * (1 + BAND), MODELLED, AUTO, threads)
        small, scale = (problem, 1.0) if (problem, threads) in self._by_problem else proxy(problem)
        found = []
        for name in self._by_problem.get((small, threads), []):
            record = self._table[small, name, threads]
            low, middle, high = quartiles(record.samples)
            cost = Cost(middle, low, high, MEASURED, name, threads, record.key)
            cost = cost.scaled(scale * self.share(small, threads, _as_routed(small, record)))
            # What a call in a model finds in a cache, it finds there in the engine too.
            in_place = record.extra.get("in_place")
            found.append(cost if in_place else cost.at_least(self.roof.seconds(problem, threads)))
        if not found:
            return self._from_the_roof(problem, threads) if self.assumes else None
        return min(found, key=lambda cost: cost.seconds)

    def part(self, problem: Problem, device: Device, threads: int, part: Part) -> Cost | None:
        """The cheapest way to run a part of the routed experts of ``problem``; errors as for ``cost``."""
        whole = self.cost(problem, device, threads)
        if whole is None or device == CPU:
            return whole and whole.scaled(self.share(problem, threads, part))
        size = work(problem)
        share = replace(
            size,
            flops=size.flops * part.visits,
            weight_bytes=size.weight_bytes * part.distinct,
            activation_bytes=size.activation_bytes * part.visits,
        )
        return whole.scaled(self.profiles[device].seconds(share) / self.profiles[device].seconds(size))

    def share(self, problem: Problem, threads: int, part: Part) -> float:
        """Of the CPU's time for the routed experts of ``problem``, what a part takes: reading goes with the distinct
        experts, arithmetic with the visits, and the longer of the two is what a call takes."""
        if part.visits == part.distinct:
            return part.visits
        size = work(problem)
        bandwidth, peak = self.roof.limits(threads)
        if not bandwidth or not peak:
            return max(part.visits, part.distinct)
        moving, computing = size.weight_bytes / bandwidth, size.flops / (PRODUCT_EFFICIENCY * peak)
        return max(part.distinct * moving, part.visits * computing) / max(moving, computing)

    def adjusted(self, cost: Cost, problem: Problem, device: Device) -> Cost:
        """A price of ``problem`` from elsewhere, as it is under the conditions of this model: what it was."""
        return cost

    def _from_the_roof(self, problem: Problem, threads: int) -> Cost | None:
        """At a share of the host's measured limits; None where those are not known."""
        size = work(problem)
        moved = size.bytes_touched
        limits = [
            min((value for n, value in limit.items() if n >= threads), default=0.0)
            for limit in (self.roof.bandwidth, self.roof.peak)
        ]
        if not all(limits):
            return None
        efficiency = PRODUCT_EFFICIENCY if size.weight_bytes else PLANNED_EFFICIENCY
        seconds = _CALL_SECONDS + max(moved / (MEMORY_EFFICIENCY * limits[0]), size.flops / (efficiency * limits[1]))
        return Cost(seconds, seconds * (1 - BAND), seconds * (1 + BAND), MODELLED, AUTO, threads)

    def weight_bytes(self, problem: Problem, device: Device, threads: int) -> int:
        """What the weights of ``problem`` take on ``device``: packed on the CPU, as in the file on a GPU."""
        key = (problem, device, threads)
        if key not in self._sizes:
            cost = self.cost(problem, device, threads) if device == CPU else None
            self._sizes[key] = self.packed.n_bytes(problem, cost.implementation if cost else "")
        return self._sizes[key]

    def transfer(self, n_bytes: float, src: Device, dst: Device) -> Cost:
        """A copy over the links of both ends; between two GPUs it passes through the host's memory."""
        ends = [self.profiles[device] for device in (src, dst) if device in self.profiles]
        if not ends:
            raise Unsupported("a transfer without a GPU")
        seconds = sum(profile.transfer_seconds(n_bytes) for profile in ends)
        if all(profile.link_is_measured for profile in ends):
            return Cost(seconds, seconds, seconds, MEASURED, "copy")
        return Cost(seconds, seconds * (1 - BAND), seconds * (1 + BAND), MODELLED, "copy")

    def best_threads(self, problems: Mapping[Problem, float]) -> int:
        """The thread count that runs ``problems`` (each with its weight) fastest, the largest unless another pays."""
        totals = {}
        for n in self.threads:
            costs = [(self.cost(problem, CPU, n), weight) for problem, weight in problems.items()]
            if all(cost is not None for cost, _ in costs):
                totals[n] = sum(cost.seconds * weight for cost, weight in costs if cost is not None)
        if not totals:
            return self.threads[-1]
        most = max(totals)
        least = min(totals, key=lambda n: totals[n])
        return least if totals[least] < (1 - WORTH_FEWER_THREADS) * totals[most] else most


def _tells(record: Record) -> tuple[bool, int]:
    """How much a record says of a model: what a call takes where it stands there more than what it takes by itself,
    and in a run of few tokens, where the one row of the head is much of the time, more than in one of many."""
    tokens = record.extra.get("run_tokens")
    return bool(record.extra.get("in_place")), -tokens if isinstance(tokens, int) else 0


def _as_routed(problem: Problem, record: Record) -> Part:
    """What experts that are visited by chance are, of those that were measured: a call of a few tokens is measured with
    experts that no two of its tokens share, so that no cache helps. In a model the routers choose."""
    if problem.op != "moe_experts" or record.extra.get("in_place"):
        return Part(1.0, 1.0, 0.0)
    experts, top_k, tokens = (problem.integer(name) for name in ("experts", "top_k", "tokens"))
    expected = expected_experts(experts, top_k, tokens)
    measured = record.extra.get("distinct_experts")
    if not isinstance(measured, (int, float)) or isinstance(measured, bool) or measured <= 0:
        measured = tokens * top_k if tokens * top_k <= experts else expected
    return Part(1.0, expected / measured, 0.0)
