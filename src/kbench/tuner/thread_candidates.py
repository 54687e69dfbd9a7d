"""Thread counts that are worth trying: what the machine is made of, and what divides the work."""

from __future__ import annotations

from kbench.core import Problem
from kbench.measure import Host

# Every count up to here: few threads are cheap to try, and no curve is assumed to be smooth.
_ALL_UP_TO = 4


def thread_candidates(machine: Host, problem: Problem | None = None) -> tuple[int, ...]:
    """Counts up to ``machine.usable_cpus``, ascending.

    Small ones, powers of two, all cores and one less (for whoever else runs); whole clusters of cores that share a
    last-level cache; whole memory nodes; for routed experts, what divides the experts of a token, and their multiples:
    with other counts some threads get an expert more than others.
    """
    most = machine.usable_cpus
    found = {*range(1, _ALL_UP_TO + 1), most - 1, most, *(1 << power for power in range(most.bit_length()))}
    for cpus in (*_clusters(machine), *(node.cpus for node in machine.cpu.numa)):
        cores = len(machine.cpu.cores_within(sorted(set(cpus) & set(machine.affinity))))
        if cores:
            found |= set(range(cores, most + 1, cores))
    if problem is not None and problem.has("top_k"):
        top_k = problem.integer("top_k")
        found |= {n for n in range(1, top_k + 1) if top_k % n == 0}
        found |= {top_k << power for power in range(most.bit_length())}
    return tuple(sorted(n for n in found if 1 <= n <= most))


def _clusters(machine: Host) -> tuple[tuple[int, ...], ...]:
    """Logical CPUs of each last-level cache; nothing where unknown."""
    data = [cache for cache in machine.cpu.caches if cache.kind != "instruction"]
    return max(data, key=lambda cache: cache.level).instances if data else ()
