"""Counts come from the machine and from what divides the work."""

from __future__ import annotations

from dataclasses import replace

from kbench.core import Problem
from kbench.measure import Cache, Cpu, Host, NumaNode, host
from kbench.tuner.thread_candidates import thread_candidates


def machine(n_cores: int, per_cache: int, per_node: int, smt: int = 1) -> Host:
    """Logical CPU i belongs to core i % n_cores."""
    cores = tuple(tuple(range(core, n_cores * smt, n_cores)) for core in range(n_cores))

    def split(size: int) -> list[tuple[int, ...]]:
        return [tuple(c for core in cores[i : i + size] for c in core) for i in range(0, n_cores, size)]

    caches = (Cache(1, "data", 32 << 10, cores), Cache(3, "unified", 32 << 20, tuple(split(per_cache))))
    nodes = tuple(NumaNode(i, cpus, 0) for i, cpus in enumerate(split(per_node)))
    cpu = Cpu("AMD", "made up", ("avx2",), 1, cores, caches, nodes, False)
    limits = replace(host().cgroup, cpu_quota=None)
    return replace(host(), cpu=cpu, affinity=tuple(range(n_cores * smt)), cgroup=limits)


def experts(top_k: int) -> Problem:
    sizes = {"experts": 64, "n": 1408, "k": 2048, "tokens": 1}
    return Problem.make("moe_experts", top_k=top_k, quant_gate="Q4_K", quant_up="Q4_K", quant_down="Q6_K", **sizes)


def test_a_small_machine_tries_every_count() -> None:
    assert thread_candidates(machine(2, 2, 2)) == (1, 2)
    assert thread_candidates(machine(4, 4, 4, smt=2)) == (1, 2, 3, 4)


def test_a_cliff_at_the_last_core_is_seen() -> None:
    assert {63, 64} <= set(thread_candidates(machine(64, 8, 32, smt=2)))


def test_whole_caches_and_nodes() -> None:
    counts = set(thread_candidates(machine(48, 6, 24)))
    assert {6, 12, 18, 24, 30, 36, 42, 48} <= counts
    assert max(counts) == 48 and len(counts) < 24


def test_counts_that_share_experts_evenly() -> None:
    assert {1, 2, 3, 6, 12, 24} <= set(thread_candidates(machine(32, 8, 32), experts(6)))
    assert 6 not in thread_candidates(machine(32, 8, 32))


def test_a_quota_is_a_limit() -> None:
    limited = machine(16, 8, 16)
    limited = replace(limited, cgroup=replace(limited.cgroup, cpu_quota=5.5))
    assert max(thread_candidates(limited)) == 6
