"""Packed weights in as many copies as a cold cache needs, and the calls that rotate over them."""

from __future__ import annotations

import dataclasses
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import Block, Problem, work
from kbench.kernels import (
    Cache,
    Example,
    Implementation,
    Prepared,
    WeightData,
    example,
    example_cache,
    example_weights,
)
from kbench.measure import host, rotation_count

from .cell import Cell
from .shrink import MAX_COPY_BYTES

# Copies beyond this are not made, whatever the cache: small matrices would take longer to pack than to measure.
MAX_COPIES = 512
# Bytes of caches that attention rotates over.
MAX_CACHE_BYTES = 512 << 20

IdArray = npt.NDArray[np.int32]


def cold_bytes() -> int:
    """Bytes that a rotation must read before it comes back to the first copy."""
    return rotation_count(1, host().llc_bytes)  # so many copies of one byte


def seed(problem: Problem) -> int:
    """Of a problem's random numbers: the same in every process."""
    return zlib.crc32(problem.key.encode())


def family(problem: Problem) -> Problem:
    """``problem`` with everything that weights do not depend on set to 1."""
    return problem.replace(**{name: 1 for name in ("tokens", "context", "top_k") if problem.has(name)})


@dataclass(slots=True)
class PackedCopies:
    """One family's weights, for any number of tokens and threads.

    ``weights`` are the stored tensors of copy 0, for the check; ``prepare_seconds`` is what packing that one took.
    """

    weights: tuple[WeightData, ...]
    copies: list[Prepared]
    prepare_seconds: float

    @property
    def n_bytes(self) -> int:
        """Of one packed copy."""
        return self.copies[0].n_bytes


def pack_copies(item: Implementation, problem: Problem, block: Block | None = None, times: int = 1) -> PackedCopies:
    """Makes and packs weights until together they are cold, ``times`` over, or memory or patience end."""
    rng = np.random.default_rng(seed(family(problem)))
    weights = example_weights(problem, rng)
    begin = time.perf_counter()
    copies = [item.prepare(problem, weights, block)]
    seconds = time.perf_counter() - begin
    size = copies[0].n_bytes
    # Norm weights and the like are nothing to a cache; experts and embedding rows are rotated over within one copy.
    if problem.op in ("linear", "head_linear", "moe_router") and size:
        cap = max(1, min(times * MAX_COPIES, MAX_COPY_BYTES // size))
        count = rotation_count(size, times * host().llc_bytes, cap)
        copies += [item.prepare(problem, example_weights(problem, rng), block) for _ in range(count - 1)]
    return PackedCopies(weights, copies, seconds)


def first_example(cell: Cell, problem: Problem, packed: PackedCopies) -> Example:
    """Copy 0's call of ``problem`` (the part of the cell's that is measured): the one that is checked."""
    case = example(problem, np.random.default_rng(seed(problem)), weights=packed.weights)
    call = dataclasses.replace(
        case.call, implementation=cell.implementation, threads=cell.threads, block=dict(cell.block)
    )
    return dataclasses.replace(case, call=call)


def variants(case: Example, packed: PackedCopies, cache_bytes: int | None = None) -> list[tuple[Example, Prepared]]:
    """The calls to rotate over: other weights, other experts or other caches. ``cache_bytes``: of the last-level cache
    that is to be cold, by default this machine's."""
    problem = case.call.problem
    rng = np.random.default_rng(seed(problem) + 1)
    if problem.has("kv"):
        size = max(1, int(work(problem).resident_bytes))
        llc_bytes = host().llc_bytes if cache_bytes is None else cache_bytes
        count = rotation_count(size, llc_bytes, max(1, min(MAX_COPIES, MAX_CACHE_BYTES // size)))
        caches = [case.state.caches[0], *(example_cache(problem, rng) for _ in range(count - 1))]
        return [(_with_cache(case, cache), packed.copies[0]) for cache in caches]
    if problem.op == "moe_experts":
        return [(_with_ids(case, ids), packed.copies[0]) for ids in _expert_rounds(problem, rng)]
    return [(case, prepared) for prepared in packed.copies]


def _with_cache(case: Example, cache: Cache) -> Example:
    return dataclasses.replace(case, state=dataclasses.replace(case.state, caches={0: cache}))


def _with_ids(case: Example, ids: IdArray) -> Example:
    x, _, scores = case.inputs
    return dataclasses.replace(case, inputs=(x, ids, scores))


def _expert_rounds(problem: Problem, rng: np.random.Generator) -> list[IdArray]:
    """Expert ids ``[tokens, top_k]`` of several calls.

    A call of few tokens takes the next experts of a shuffled deck, so that every expert is used before one comes
    again; a call of many uses (nearly) all of them anyway, as the router happens to choose.
    """
    experts, top_k, tokens = (problem.integer(name) for name in ("experts", "top_k", "tokens"))
    used = tokens * top_k
    if used > experts:
        return [np.argsort(rng.random((tokens, experts)), axis=-1)[:, :top_k].astype(np.int32)]
    deck = rng.permutation(experts).astype(np.int32)
    return [deck[i * used : (i + 1) * used].reshape(tokens, top_k) for i in range(experts // used)]


def distinct_experts(chosen: list[tuple[Example, Prepared]]) -> float:
    """Experts that a call visits, on average over ``chosen``."""
    return sum(len(np.unique(case.inputs[1])) for case, _ in chosen) / len(chosen)


def touched_bytes(case: Example, chosen: list[tuple[Example, Prepared]]) -> int:
    """Bytes of weights or caches that one turn round all of ``chosen`` reads."""
    problem = case.call.problem
    if problem.has("kv"):
        return int(work(problem).resident_bytes) * len(chosen)
    if problem.op == "moe_experts":
        used: set[Any] = set()
        for one, _ in chosen:
            used.update(np.unique(one.inputs[1]).tolist())
        return chosen[0][1].n_bytes * len(used) // problem.integer("experts")
    return sum(prepared.n_bytes for _, prepared in chosen)
