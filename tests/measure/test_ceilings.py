"""Ceilings of made-up probes, and the adapter of a made-up native module."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import dataclass

import pytest

from kbench.core import InvalidEnvironment
from kbench.measure import KINDS, READ_BANDWIDTH, ceilings, thread_ladder


@dataclass
class Answer:
    value: float | None
    reason: str = ""


class FakeProbes:
    name = "cpu.fake"

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def read_bandwidth(self, threads: int) -> Answer:
        self.calls.append((READ_BANDWIDTH, threads))
        # The second of three readings is disturbed: the median must not care.
        disturbed = self.calls.count((READ_BANDWIDTH, threads)) == 2
        return Answer(1e9 if disturbed else 1e10 * min(threads, 3))

    def arithmetic_peak(self, kind: str, threads: int) -> Answer:
        self.calls.append((kind, threads))
        return Answer(None, "no bf16 here") if kind == "bf16" else Answer(1e11 * threads)


def test_every_point_is_the_median_of_its_readings() -> None:
    probes = FakeProbes()
    seen: list[tuple[int, int, str]] = []
    found = ceilings(probes, [1, 2, 4, 8], progress=lambda *step: seen.append(step))
    assert [found.get(READ_BANDWIDTH, n).value for n in (1, 2, 4, 8)] == [1e10, 2e10, 3e10, 3e10]  # type: ignore[union-attr]
    assert found.best(READ_BANDWIDTH) is found.get(READ_BANDWIDTH, 4)
    assert found.get("int8", 8).value == 8e11  # type: ignore[union-attr]
    assert found.get("int8", 4) is None
    bf16 = found.get("bf16", 1)
    assert bf16 is not None and (bf16.value, bf16.reason) == (None, "no bf16 here")
    assert found.best("bf16") is None
    assert probes.calls.count(("bf16", 1)) == 1  # not asked again
    assert probes.calls[:4] == [(READ_BANDWIDTH, n) for n in (1, 2, 4, 8)]  # rounds, not one point after another
    assert seen[-1][:2] == (30, 30)
    assert json.loads(json.dumps(found.as_dict()))["items"][0]["samples"] == [1e10, 1e9, 1e10]


def test_one_thread_has_one_point_of_each() -> None:
    assert len(ceilings(FakeProbes(), [1], repetitions=1).items) == 1 + len(KINDS)


@pytest.mark.parametrize("counts", [[], [0], [-1, 2]])
def test_no_thread_count_is_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="thread count"):
        ceilings(FakeProbes(), counts)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 64, 192])
def test_the_ladder_rises_from_1_to_n(n: int) -> None:
    ladder = thread_ladder(n)
    assert ladder[0] == 1 and ladder[-1] == n
    assert list(ladder) == sorted(set(ladder))
    assert ladder[:8] == tuple(range(1, min(n, 8) + 1))
    assert len(ladder) <= 30


class FakePool:
    n_made = 0

    def __init__(self, threads: int, cpus: list[int]) -> None:
        self.threads, self.cpus = threads, cpus
        FakePool.n_made += 1


def fake_native() -> types.ModuleType:
    native = types.ModuleType("kbench.kernels.cpu._native")

    def arithmetic_peak(pool: FakePool, isa: str, kind: str, seconds: float) -> float:
        if kind == "bf16":
            raise ValueError("avx2 has no bf16 dot product")
        return 0.0 if kind == "f32" else 1e11 * pool.threads

    native.isas = lambda: [("scalar", ""), ("avx2", ""), ("avx512_vnni", "the CPU lacks it")]  # type: ignore[attr-defined]
    native.Pool = FakePool  # type: ignore[attr-defined]
    native.read_bandwidth = lambda pool, n_bytes, seconds: n_bytes * pool.threads  # type: ignore[attr-defined]
    native.arithmetic_peak = arithmetic_peak  # type: ignore[attr-defined]
    return native


def test_the_native_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbench.kernels import native_probes

    monkeypatch.setitem(sys.modules, "kbench.kernels.cpu._native", fake_native())
    probes = native_probes(2, cpus=[4, 6], n_bytes=1000, seconds=0.01)
    assert probes.name == "cpu.avx2"
    made = FakePool.n_made
    assert probes.read_bandwidth(2).value == 2000.0
    assert probes.arithmetic_peak("int8", 2).value == 2e11
    assert FakePool.n_made == made + 1
    assert probes.arithmetic_peak("bf16", 1).reason == "avx2 has no bf16 dot product"
    assert probes.arithmetic_peak("f32", 1).value is None
    assert FakePool.n_made == made + 2


def test_a_module_without_probes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbench.kernels import native_probes

    native = fake_native()
    del native.read_bandwidth
    monkeypatch.setitem(sys.modules, "kbench.kernels.cpu._native", native)
    with pytest.raises(InvalidEnvironment, match="lacks read_bandwidth"):
        native_probes(1)
    monkeypatch.setitem(sys.modules, "kbench.kernels.cpu._native", None)
    with pytest.raises(InvalidEnvironment, match="not there"):
        native_probes(1)
