"""The native module's probes of what this CPU can do at best: an adapter with plain numbers and reasons."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbench.core import InvalidEnvironment

# Seconds of one probe: long enough for the clock frequency to settle, short enough to repeat.
PROBE_SECONDS = 0.2

# Far beyond most last-level caches; callers who know theirs pass more.
PROBE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """A rate in bytes/s or op/s, or None and the reason why there is none."""

    value: float | None
    reason: str = ""


class NativeProbes:
    """Runs the probes of one instruction set on a pool that is kept while the thread count stays the same."""

    def __init__(self, native: Any, isa: str, cpus: Sequence[int], n_bytes: int, seconds: float) -> None:
        self._native, self._isa, self._cpus = native, isa, list(cpus)
        self._n_bytes, self._seconds = n_bytes, seconds
        self._pool: Any = None

    @property
    def name(self) -> str:
        return f"cpu.{self._isa}"

    def read_bandwidth(self, threads: int) -> ProbeReading:
        """Bytes per second read by ``threads`` threads from a buffer that no cache holds."""
        return self._reading(self._native.read_bandwidth, threads, self._n_bytes, self._seconds)

    def arithmetic_peak(self, kind: str, threads: int) -> ProbeReading:
        """Operations per second of ``kind`` (int8, bf16, f32) on registers alone."""
        return self._reading(self._native.arithmetic_peak, threads, self._isa, kind, self._seconds)

    def _reading(self, probe: Any, threads: int, *arguments: object) -> ProbeReading:
        if self._pool is None or self._pool.threads != threads:
            self._pool = self._native.Pool(threads, self._cpus[:threads])
        try:
            value = probe(self._pool, *arguments)
        except (ValueError, RuntimeError, MemoryError) as error:
            return ProbeReading(None, str(error) or type(error).__name__)
        return ProbeReading(float(value)) if value and value > 0 else ProbeReading(None, f"{self.name} has none")


def native_probes(
    max_threads: int,
    *,
    cpus: Sequence[int] = (),
    n_bytes: int = PROBE_BYTES,
    seconds: float = PROBE_SECONDS,
) -> NativeProbes:
    """Probes of the best instruction set that this machine runs.

    Args:
        max_threads: the largest thread count that will be asked for.
        cpus: logical CPUs to pin to, at least ``max_threads`` of them; empty lets the pool choose.
        n_bytes: bytes read per bandwidth pass; more than twice the last-level cache.
        seconds: length of one probe.

    Raises:
        InvalidEnvironment: the native module is not built, or runs nothing here.
    """
    try:
        native = importlib.import_module("kbench.kernels.cpu._native")
    except ImportError as error:
        raise InvalidEnvironment(
            f"the native module is not there: {error}", todo="install kbench with a C++17 compiler (pip install .)"
        ) from None
    missing = [probe for probe in ("isas", "Pool", "read_bandwidth", "arithmetic_peak") if not hasattr(native, probe)]
    if missing:
        raise InvalidEnvironment(f"the native module lacks {', '.join(missing)}", todo="reinstall kbench")
    runnable = [name for name, reason in native.isas() if not reason]
    if not runnable:
        raise InvalidEnvironment("the native module runs no instruction set of this CPU")
    # isas() lists them from the least to the most capable.
    return NativeProbes(native, runnable[-1], cpus if len(cpus) >= max_threads else (), n_bytes, seconds)
