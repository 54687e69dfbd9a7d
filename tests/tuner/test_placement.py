"""The solver against brute force and against greedy, on random problems small enough to try everything."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from kbench.tuner.column import Column, undominated
from kbench.tuner.greedy import greedy
from kbench.tuner.placement import PlacementProblem, evaluate, least_overflow, priced, solve


def random_problem(seed: int) -> PlacementProblem:
    """Two or three devices, one to three types of stages with one to three units, two to four stages."""
    rng = random.Random(seed)
    n_devices = rng.choice([2, 2, 2, 3])
    types = []
    for _ in range(rng.randint(1, 3)):
        n_units = rng.randint(1, 3 if n_devices == 2 else 2)
        sizes = [rng.randint(0, 60) << 20 for _ in range(n_units)]
        speeds = [[rng.uniform(0.1, 10.0) for _ in range(n_devices)] for _ in range(n_units)]
        crossing = rng.choice([0.0, 0.05, 1.0])
        exit_unit = rng.randrange(n_units)
        shared = rng.random() < 0.3
        columns = []
        for devices in itertools.product(range(n_devices), repeat=n_units):
            inside = sum(a != b for a, b in itertools.pairwise(devices))
            base = sum(speeds[u][d] for u, d in enumerate(devices)) + crossing * inside
            seconds = tuple(base + crossing * (devices[0] != entry) for entry in range(n_devices))
            n_bytes = tuple(sum(s for s, d in zip(sizes, devices, strict=True) if d == x) for x in range(n_devices))
            uses = frozenset({("tied", devices[-1])}) if shared else frozenset()
            columns.append(Column(devices, devices[exit_unit], seconds, n_bytes, uses))
        types.append(tuple(columns))
    chain = tuple(rng.randrange(len(types)) for _ in range(rng.randint(2, 4 if n_devices == 2 else 3)))
    total = sum(sum(types[kind][0].n_bytes) for kind in chain)
    capacity = tuple(int(total * rng.uniform(0.2, 1.1)) for _ in range(n_devices))
    price = tuple(rng.choice([0.0, 0.01]) / 2**20 for _ in range(n_devices))
    return PlacementProblem(tuple(types), chain, capacity, (("tied", 10 << 20),), price, rng.randrange(n_devices))


def brute_force(problem: PlacementProblem) -> float | None:
    """The least objective over every choice of columns that fits."""
    best = None
    for columns in itertools.product(*(problem.types[kind] for kind in problem.chain)):
        seconds, used = evaluate(problem, columns)
        if all(n <= c for n, c in zip(used, problem.capacity, strict=True)):
            objective = priced(problem, seconds, used)
            best = objective if best is None else min(best, objective)
    return best


@pytest.mark.parametrize("block", range(10))
def test_the_solver_finds_what_brute_force_finds(block: int) -> None:
    feasible = 0
    for seed in range(20 * block, 20 * block + 20):
        problem = random_problem(seed)
        expected, found = brute_force(problem), solve(problem)
        assert (found is None) == (expected is None), seed
        if found is None or expected is None:
            continue
        feasible += 1
        assert found.status == "optimal"
        assert all(n <= c for n, c in zip(found.used_bytes, problem.capacity, strict=True)), seed
        # HiGHS keeps an absolute gap of 1e-6 of an objective scaled to about a thousand: a billionth.
        assert priced(problem, found.seconds, found.used_bytes) == pytest.approx(expected, rel=1e-8), seed
    assert feasible >= 7


def test_the_solver_is_never_worse_than_greedy() -> None:
    compared = strictly_better = 0
    for seed in range(200, 260):
        problem = random_problem(seed)
        found, rival = solve(problem), greedy(problem)
        if rival is None:
            continue
        assert found is not None, seed
        compared += 1
        ours, theirs = (priced(problem, s.seconds, s.used_bytes) for s in (found, rival))
        assert ours <= theirs * (1 + 1e-9), seed
        strictly_better += ours < theirs * (1 - 1e-6)
    assert compared >= 20 and strictly_better >= 1


def layered(n_layers: int, vram: int, dram: int) -> PlacementProblem:
    """A model of two kinds of layers with seven units each, sizes and speeds like DeepSeek-V2's."""

    def layer(experts: int) -> tuple[Column, ...]:
        units = [(5e-4, 2e-5, 20_000), (1.5e-3, 5e-5, 25 << 20), (2e-4, 1e-5, 2 << 20), (5e-3, 6e-5, 15 << 20)]
        units += [(2.5e-3, 1e-4, 47 << 20), (1.5e-3, 8e-5, 28 << 20), (experts / 6e11, experts / 2e13, experts)]
        columns = []
        for devices in itertools.product((0, 1), repeat=len(units)):
            inside = sum(a != b for a, b in itertools.pairwise(devices))
            base = sum(unit[d] for unit, d in zip(units, devices, strict=True)) + 3e-5 * inside
            n_bytes = tuple(sum(unit[2] for unit, d in zip(units, devices, strict=True) if d == x) for x in (0, 1))
            columns.append(
                Column(devices, devices[0], (base + 3e-5 * devices[0], base + 3e-5 * (not devices[0])), n_bytes)
            )
        return tuple(columns)

    chain = tuple(int(layer % 3 == 0) for layer in range(n_layers))
    return PlacementProblem((layer(2_123_366_400), layer(2_447_769_600)), chain, (dram << 30, vram << 30))


@pytest.mark.parametrize(("vram", "dram"), [(21, 136), (2, 136), (15, 121), (40, 110)])
def test_sixty_alike_layers_are_proven_optimal(vram: int, dram: int) -> None:
    problem = layered(60, vram, dram)
    found, rival = solve(problem), greedy(problem)
    assert found is not None and found.status == "optimal" and found.gap == pytest.approx(0, abs=1e-9)
    assert rival is None or found.seconds <= rival.seconds * (1 + 1e-9)
    assert all(n <= c for n, c in zip(found.used_bytes, problem.capacity, strict=True))


def test_more_memory_never_costs_time() -> None:
    times = [found.seconds for vram in (0, 1, 3, 9, 21, 60) if (found := solve(layered(12, vram, 136)))]
    assert len(times) == 6
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(times))


def test_an_empty_gpu_is_a_legal_answer() -> None:
    slow_gpu = replace(layered(6, 21, 136))
    columns = tuple(
        tuple(replace(c, seconds=tuple(s + sum(c.devices) for s in c.seconds)) for c in kind) for kind in slow_gpu.types
    )
    found = solve(replace(slow_gpu, types=columns))
    assert found is not None and found.used_bytes[1] == 0


def test_the_overflow_is_what_the_first_device_lacks() -> None:
    problem = layered(12, 0, 136)
    needed = sum(sum(problem.types[kind][0].n_bytes) for kind in problem.chain)
    short = replace(problem, capacity=(needed - 12345, 0))
    assert solve(short) is None
    assert least_overflow(short) == 12345
    assert least_overflow(replace(short, capacity=(needed, 0))) == 0
    assert solve(replace(short, capacity=(needed, 0))) is not None


def test_only_columns_that_cannot_win_are_dropped() -> None:
    fast = Column((1,), 1, (1.0, 1.0), (0, 10))
    small = Column((0,), 1, (2.0, 2.0), (10, 0))
    worse = Column((2,), 1, (2.0, 2.0), (10, 11))
    other_exit = Column((3,), 0, (5.0, 5.0), (10, 10))
    assert undominated([worse, small, fast, other_exit], [1], 0) == [fast, small, other_exit]
    assert undominated([worse, small, fast, other_exit], [], 0) == [fast, other_exit]
