"""The host's roof for the cost model: read from the store where it is known, measured in a second where not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbench.core import InvalidEnvironment
from kbench.measure import READ_BANDWIDTH, ceilings, host
from kbench.results import Record, Store

from .cost_model import Roof

_PEAK = "arithmetic_peak"

# The kind whose peak is the highest on every CPU that has it; f32 is there for CPUs without.
_KINDS = ("int8", "f32")

# Short: the roof is a bound on predictions, and `kbench doctor` is there for its own sake.
_SECONDS, _REPETITIONS = 0.1, 2

# Below this share of the roof's time a measurement is no noise of the roof any more.
_CLEARLY = 0.95


def roof_of(records: Iterable[Record]) -> Roof:
    """The highest reading of every thread count."""
    bandwidth: dict[int, float] = {}
    peak: dict[int, float] = {}
    for record in records:
        limits = {READ_BANDWIDTH: bandwidth, _PEAK: peak}.get(record.op)
        if limits is not None and record.status == "ok" and record.samples and record.threads:
            limits[record.threads] = max(*record.samples, limits.get(record.threads, 0.0))
    return Roof(bandwidth, peak)


def stored_roof(store: Store, host_id: str) -> Roof:
    return roof_of(record for op in (READ_BANDWIDTH, _PEAK) for record in store.find(op=op, host_id=host_id))


def beaten(roof: Roof, records: Iterable[Record]) -> bool:
    """Whether a cold measurement is clearly faster than the roof: the machine was busy when the roof was probed."""
    return any(
        record.median < _CLEARLY * roof.seconds(record.core_problem(), record.threads)
        for record in records
        if record.median and record.threads and record.extra.get("cold")
    )


def measured_roof(store: Store, threads: Iterable[int], *, again: bool = False) -> Roof:
    """Measures what the store lacks of ``threads`` (all of it ``again``), and stores it.

    An empty roof where no native probe runs.
    """
    counts = sorted(set(threads))
    known = stored_roof(store, host().host_id)
    missing = [n for n in counts if again or n not in known.bandwidth]
    if not missing:
        return known
    store.append(_probed(missing, counts[-1]), suite="tune")
    return stored_roof(store, host().host_id)


def renewed_roof(roof: Roof, threads: Iterable[int]) -> Roof:
    """``roof``, higher where the machine shows more of itself now. Not stored: what has been placed by the roof that is
    there is placed so again."""
    counts = sorted(set(threads))
    now = roof_of(_probed(counts, counts[-1]))
    return Roof(
        {n: max(bandwidth, now.bandwidth.get(n, 0.0)) for n, bandwidth in {**now.bandwidth, **roof.bandwidth}.items()},
        {n: max(peak, now.peak.get(n, 0.0)) for n, peak in {**now.peak, **roof.peak}.items()},
    )


def _probed(counts: Sequence[int], most: int) -> list[Record]:
    """Readings of ``counts`` threads, by probes that are ready for ``most``; none where no native probe runs."""
    from kbench.kernels import native_probes  # loads the native module

    machine = host()
    # Four caches: each pass leaves at most a quarter of the buffer behind.
    n_bytes = max(256 << 20, 4 * machine.llc_bytes)
    try:
        probes = native_probes(most, cpus=machine.pin_cpus, n_bytes=n_bytes, seconds=_SECONDS)
    except InvalidEnvironment:
        return []
    found = ceilings(probes, counts, kinds=_KINDS, repetitions=_REPETITIONS)
    return [
        Record.make(
            (READ_BANDWIDTH, {}) if item.name == READ_BANDWIDTH else (_PEAK, {"kind": item.name}),
            found.probes,
            threads=item.threads,
            result=item.samples,
            unit=item.unit,
            direction="higher",
        )
        for item in found.items
        if item.samples
    ]
