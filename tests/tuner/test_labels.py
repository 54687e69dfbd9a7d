"""Labels and bounds against brute force, against the integer programme, and, for sixty unlike layers, against a table
of every number of bytes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from test_placement import brute_force, layered, random_problem

from kbench.tuner.arcs import Arcs, few_shared, undominated_rows
from kbench.tuner.column import Column
from kbench.tuner.labels import shortest
from kbench.tuner.memory_prices import bound_of
from kbench.tuner.milp import solve_milp
from kbench.tuner.placement import PlacementProblem, evaluate, priced, solve

SEEDS = range(40)


def unlike(n_layers: int, room_mib: int, seed: int = 1) -> PlacementProblem:
    """Layers of which no two cost the same: a part that is on the GPU or not, experts of which more and more are, in
    whole MiB, all of them together two thirds more than there is room for."""
    rng = random.Random(seed)
    types = []
    for _ in range(n_layers):
        own, group, crossing = rng.randint(4, 9), rng.randint(6, 8), rng.uniform(0.01, 0.2)
        gains = sorted((rng.uniform(0.2, 1.5) for _ in range(7)), reverse=True)
        columns = []
        for part, groups in itertools.product((0, 1), range(8)):
            seconds = 20 - sum(gains[:groups]) - rng.uniform(1.0, 2.0) * part + crossing * (groups > 0 and not part)
            n_mib = own * part + group * groups
            by_entry = tuple(seconds + crossing * (entry != part) for entry in (0, 1))
            columns.append(Column((part,), part, by_entry, (0, n_mib << 20), split=(groups, 1)))
        types.append(tuple(columns))
    return PlacementProblem(tuple(types), tuple(range(n_layers)), (1 << 62, room_mib << 20))


def by_table(problem: PlacementProblem) -> float:
    """The least seconds with every number of MiB on the GPU, entered from either device: a knapsack by its book."""
    room = problem.capacity[1] >> 20
    least = np.full((2, room + 1), np.inf)
    least[problem.first, 0] = 0.0
    for kind in problem.chain:
        after = np.full_like(least, np.inf)
        for column in problem.types[kind]:
            n_mib = column.n_bytes[1] >> 20
            if n_mib > room:
                continue
            for entry in (0, 1):
                moved = least[entry, : room + 1 - n_mib] + column.seconds[entry]
                after[column.exit, n_mib:] = np.minimum(after[column.exit, n_mib:], moved)
        least = after
    return float(least.min())


@pytest.mark.parametrize("room_mib", [0, 40, 700, 1500, 2400])
def test_sixty_unlike_layers_are_proven_optimal(room_mib: int) -> None:
    problem = unlike(60, room_mib)
    found = solve(problem, scarce=(1,))
    assert found is not None and found.status == "optimal" and found.gap == 0
    assert found.used_bytes[1] <= problem.capacity[1]
    assert found.seconds == pytest.approx(by_table(problem), rel=1e-12)


def test_two_memories_of_unlike_layers() -> None:
    """Host and GPU both too small: against the integer programme, of so many layers as it still proves."""
    problem = unlike(6, 150)
    total = max(c.n_bytes[1] for kind in problem.types for c in kind) * 6
    types = tuple(
        tuple(replace(c, n_bytes=(total // 6 - c.n_bytes[1], c.n_bytes[1])) for c in kind) for kind in problem.types
    )
    problem = replace(problem, types=types, capacity=(total - (130 << 20), 150 << 20))
    arcs = Arcs(problem, (0, 1))
    found, by_milp = shortest(arcs, 60.0, 0.0), solve_milp(problem, (0, 1), 60.0, 0.0)
    assert found.path is not None and found.gap == 0 and by_milp is not None and by_milp[1] == "optimal"
    assert found.path.cost == pytest.approx(evaluate(problem, by_milp[0])[0], rel=1e-8)


def test_labels_and_the_integer_programme_find_the_same() -> None:
    """Each by itself, with the rows of two memories at most."""
    compared = 0
    for seed in SEEDS:
        problem = random_problem(seed)
        for scarce in ((0,), (1,), (0, 1)):
            arcs = Arcs(problem, scarce)
            found, other = shortest(arcs, 60.0, 0.0), solve_milp(problem, scarce, 60.0, 0.0)
            assert (found.path is None) == (other is None), seed
            if found.path is None or other is None:
                continue
            if found.gap == 0:
                compared += 1
                ours, theirs = (priced(problem, *evaluate(problem, c)) for c in (arcs.columns(found.path), other[0]))
                assert ours == pytest.approx(theirs, rel=1e-8), seed
                assert ours == pytest.approx(found.path.cost, rel=1e-12), seed
    assert compared >= 60


def test_no_bound_is_above_the_optimum() -> None:
    below = 0
    for seed in SEEDS:
        problem = random_problem(seed)
        expected = brute_force(problem)
        found = bound_of(Arcs(problem, (0, 1)[: len(problem.capacity)]))
        if expected is None:
            continue
        assert not found.impossible and found.value <= expected * (1 + 1e-12), seed
        below += found.value < expected
    assert below >= 10


def test_what_cannot_fit_is_known_at_once() -> None:
    """Weights of 26 GiB for two memories of 24: no price makes them less."""
    problem = layered(12, 10, 14)
    assert bound_of(Arcs(problem, (0, 1))).impossible
    assert solve(problem) is None


@pytest.mark.parametrize("n_scarce", [0, 1, 2])
def test_rows_that_stay(n_scarce: int) -> None:
    """Against comparing every two of them."""
    rng = np.random.default_rng(n_scarce)
    for n in (1, 2, 3, 30, 200):
        cost, needs = rng.integers(0, 12, n).astype(float), rng.integers(0, 12, (n_scarce, n)).astype(float)
        rows = [(cost[i], *needs[:, i]) for i in range(n)]
        table = np.array(rows)
        worse = [((table <= row).all(axis=1) & (table != row).any(axis=1)).any() for row in table]
        least = {row for row, gone in zip(rows, worse, strict=True) if not gone}
        kept = undominated_rows(cost, needs)
        assert sorted(rows[i] for i in kept) == sorted(least)  # each once
        assert list(cost[kept]) == sorted(cost[kept])


def test_of_many_rows_none_that_counts_is_lost() -> None:
    """More values than the table has cells: some rows stay that need not."""
    rng = np.random.default_rng(3)
    cost, needs = rng.random(3000), rng.random((2, 3000))
    kept = set(undominated_rows(cost, needs).tolist())
    rows = np.vstack([cost, needs])
    least = {i for i in range(3000) if not ((rows <= rows[:, i : i + 1]).all(axis=0).sum() > 1)}
    assert least <= kept and len(kept) < 1.5 * len(least) + 50


def test_much_that_is_shared_is_left_to_the_integer_programme() -> None:
    uses = [frozenset({(f"tied {n}", 0)}) for n in range(4)]
    columns = tuple(Column((0,), 0, (1.0 + n,), (1 << 20,), use) for n, use in enumerate(uses))
    shared = tuple((f"tied {n}", (4 - n) << 20) for n in range(4))
    problem = PlacementProblem((columns,), (0, 0), (6 << 20,), shared)
    assert not few_shared(problem)
    found = solve(problem)
    # Both by the same: sharing spares a tensor. The first two need 4 and 3 MiB beside their own two.
    assert found is not None and found.used_bytes == (6 << 20,) and found.seconds == 2.0
