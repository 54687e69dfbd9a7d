"""A pytest plugin for whoever measures with pytest-benchmark: cold caches, a stopping rule, the share of the roof.

It is there as soon as kbench is installed, and costs nothing until a test asks for one of its fixtures::

    def test_dot(kbench_benchmark, kbench_cold):
        matrices = kbench_cold(lambda: np.random.rand(1024, 1024).astype(np.float32), n_bytes=4 << 20)
        x = np.random.rand(1024).astype(np.float32)
        kbench_benchmark(lambda matrix: matrix @ x, cold=matrices, n_bytes=4 << 20, flops=2 << 20)

What is measured goes through pytest-benchmark's own tables, files and comparisons; what kbench adds stands in
``extra_info["kbench"]`` and in a table of its own. ``--benchmark-disable`` runs everything once, over one copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from kbench.measure import Measurement, Rotation, StoppingRule

T = TypeVar("T")

_MEASURED = pytest.StashKey[list[tuple[str, dict[str, Any]]]]()
# Bytes that a probe reads at least, far beyond most last-level caches; and those of copies that are made at most.
_PROBE_BYTES = 256 << 20
MAX_COLD_BYTES = 1 << 30


class ColdCopies:
    """The fixture ``kbench_cold``."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, make: Callable[[], T], n_bytes: int) -> Rotation[T]:
        """What ``make`` makes, in as many copies that a turn over all of them reads more than twice the last-level
        cache: 1 GiB of them at most.

        Args:
            n_bytes: of one copy, those that a call reads.
        """
        from kbench.measure import Rotation, host, rotation_count

        cap = max(1, MAX_COLD_BYTES // max(n_bytes, 1))
        count = rotation_count(n_bytes, host().llc_bytes, cap) if self._enabled else 1
        return Rotation([make() for _ in range(count)])


class Roofs:
    """What this machine can do at best, each probed once in a session, when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], float | None] = {}

    def read_bandwidth(self, threads: int) -> float | None:
        """Bytes/s; None where it cannot be probed."""
        return self._reading("read_bandwidth", threads)

    def arithmetic_peak(self, kind: str, threads: int) -> float | None:
        """Operations/s of ``int8``, ``bf16`` or ``f32``; None where it cannot be probed."""
        return self._reading(kind, threads)

    def _reading(self, name: str, threads: int) -> float | None:
        if (name, threads) not in self._known:
            from kbench.core import InvalidEnvironment
            from kbench.kernels import native_probes
            from kbench.measure import host

            machine = host()
            try:
                n_bytes = max(_PROBE_BYTES, 4 * machine.llc_bytes)
                probes = native_probes(threads, cpus=machine.pin_cpus, n_bytes=n_bytes)
            except InvalidEnvironment:
                self._known[name, threads] = None
            else:
                bandwidth = name == "read_bandwidth"
                reading = probes.read_bandwidth(threads) if bandwidth else probes.arithmetic_peak(name, threads)
                self._known[name, threads] = reading.value
        return self._known[name, threads]


class KbenchBenchmark:
    """The fixture ``kbench_benchmark``: measures once, for the test that it was made for."""

    def __init__(self, benchmark: Any, roofs: Roofs, done: Callable[[dict[str, Any]], None]) -> None:
        self._benchmark, self._roofs, self._done = benchmark, roofs, done

    def __call__(
        self,
        fn: Callable[..., T],
        *,
        cold: Rotation[Any] | None = None,
        stopping: StoppingRule | None = None,
        n_bytes: float = 0,
        flops: float = 0,
        kind: str = "f32",
        threads: int | None = None,
    ) -> T:
        """Times ``fn`` until the stopping rule has seen enough, and returns what its last call returned.

        Args:
            cold: copies of what ``fn`` reads: every call is given the next one.
            stopping: by default until the median's 95 % interval is within 1 % to either side, or for 2 s.
            n_bytes: that a call has to read and write, for GB/s and the share of the read bandwidth.
            flops: of a call, for FLOP/s and the share of the peak of ``kind`` (``f32``, ``bf16``, ``int8``).
            threads: that ``fn`` runs on, whose roof is asked for; by default every processor of this process.

        Raises:
            Whatever ``fn`` raises.
        """
        from kbench.measure import host, is_cold, measure

        call = fn if cold is None else lambda: fn(cold.next())
        if not self._benchmark.enabled:
            only: T = self._benchmark.pedantic(call)
            return only
        measurement = measure(call, stopping=stopping)
        batch = measurement.calls_per_sample
        # One more round the official way, which makes the entry that the samples then go to.
        result: T = self._benchmark.pedantic(call, rounds=1, iterations=batch)
        for seconds in measurement.samples_seconds:
            self._benchmark.stats.update(seconds * batch)
        machine = host()
        said = self._said(measurement, n_bytes, flops, kind, threads or machine.usable_cpus)
        if cold is not None:
            said |= {
                "copies": len(cold),
                "cold": is_cold(len(cold), int(n_bytes), machine.llc_bytes) if n_bytes else None,
            }
        self._benchmark.extra_info["kbench"] = said | {"host_id": machine.host_id}
        self._done(said)
        return result

    def _said(self, measurement: Measurement, n_bytes: float, flops: float, kind: str, threads: int) -> dict[str, Any]:
        interval, seconds = measurement.interval_seconds, measurement.median_seconds
        said: dict[str, Any] = {
            "median_seconds": seconds,
            "interval_seconds": [interval.low, interval.high],
            "confidence": interval.confidence,
            "stop_reason": measurement.stop_reason,
            "first_seconds": measurement.first_seconds,
            "n_samples": len(measurement.samples_seconds),
        }
        for name, amount in (("bytes", n_bytes), ("flops", flops)):
            if amount and seconds:
                bandwidth = name == "bytes"
                most = self._roofs.read_bandwidth(threads) if bandwidth else self._roofs.arithmetic_peak(kind, threads)
                rate = amount / seconds
                said[f"{name}_per_s"] = rate
                said[f"share_of_{name}_roof"] = rate / most if most else None
        return said


@pytest.fixture(scope="session")
def kbench_roofs() -> Roofs:
    """What this machine reads and computes at best."""
    return Roofs()


@pytest.fixture
def kbench_cold(benchmark: Any) -> ColdCopies:
    """Makes copies that no cache holds together: ``kbench_cold(make, n_bytes)``."""
    return ColdCopies(benchmark.enabled)


@pytest.fixture
def kbench_benchmark(benchmark: Any, kbench_roofs: Roofs, request: pytest.FixtureRequest) -> KbenchBenchmark:
    """Measures as kbench does, into pytest-benchmark: ``kbench_benchmark(fn, cold=..., n_bytes=..., flops=...)``."""
    measured = request.config.stash.setdefault(_MEASURED, [])
    return KbenchBenchmark(benchmark, kbench_roofs, lambda said: measured.append((request.node.nodeid, said)))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What pytest-benchmark's own table has no columns for."""
    measured = config.stash.get(_MEASURED, [])
    if not measured:
        return
    terminalreporter.section("kbench")
    for test, said in measured:
        low, high = (seconds * 1e6 for seconds in said["interval_seconds"])
        parts = [f"{said['median_seconds'] * 1e6:.4g} µs [{low:.4g}, {high:.4g}]"]
        for name, unit in (("bytes", "GB/s"), ("flops", "GFLOP/s")):
            if f"{name}_per_s" in said:
                share = said[f"share_of_{name}_roof"]
                roof = f", {share:.0%} of the roof" if share is not None else ""
                parts.append(f"{said[f'{name}_per_s'] / 1e9:.4g} {unit}{roof}")
        parts += [{True: "cold", False: "not cold"}[said["cold"]]] if said.get("cold") is not None else []
        terminalreporter.write_line(f"{test}: {' · '.join((*parts, said['stop_reason']))}")
