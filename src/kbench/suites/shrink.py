"""Cells that would take gigabytes are measured on a part that costs the same per weight, and scaled.

Routed experts: a layer of DeepSeek-V2 has 160 experts of 14 MB; a call reads those that its tokens go to. As many are
made as a cold cache needs. With few tokens that is more than the call touches, and nothing is scaled. With many tokens
the part keeps what decides the speed, the tokens per expert::

    160 experts, 512 tokens, top 6: 19.2 tokens an expert     12 experts, 38 tokens, top 6: 19 tokens an expert
    seconds of the layer = seconds of the part * 512 / 38

Rows of a matrix are independent of each other and take equal time: of a head of 102400 rows so many are made as
exceed the cold cache twice. What an embedding costs does not depend on how many rows there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kbench.core import Problem, expected_experts, quant

# Packed weights of one cell stay under this, so that a run with its raw weights stays under 2.5 GiB.
MAX_COPY_BYTES = 768 << 20
# Rows of a matrix are taken in tiles of native kernels.
TILE_ROWS = 16
# A part of a big matrix is at least this big: starting the threads must not count.
MIN_PART_BYTES = 64 << 20
EMBEDDING_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Part:
    """What is measured in place of a problem: seconds of ``problem`` = ``scale`` * seconds of the part."""

    problem: Problem
    scale: float = 1.0
    note: str = ""


def weight_bytes(problem: Problem, bytes_per_weight: float | None) -> int:
    """Bytes of all weights, as stored or with ``bytes_per_weight``."""

    def size(quant_name: str, n: int, k: int) -> float:
        return n * k * (bytes_per_weight if bytes_per_weight is not None else quant(quant_name).bits_per_weight / 8)

    p = problem
    if p.op in ("linear", "head_linear"):
        heads = p.integer("heads") if p.op == "head_linear" else 1
        return int(heads * size(p.text("quant"), p.integer("n"), p.integer("k")))
    if p.op == "moe_router":
        return int(size(p.text("quant"), p.integer("experts"), p.integer("k")))
    if p.op == "moe_experts":
        n, k = p.integer("n"), p.integer("k")
        one = sum(size(p.text(f"quant_{name}"), n, k) for name in ("gate", "up", "down"))
        return int(one * p.integer("experts"))
    return 0


def part_of(problem: Problem, cold_bytes: int, bytes_per_weight: float | None = None) -> Part:
    """The part of ``problem`` to measure.

    Args:
        cold_bytes: bytes that a rotation must exceed for the last-level cache to be cold.
        bytes_per_weight: of the implementation's packed weights; None: as stored.
    """
    if problem.op == "moe_experts":
        return _experts(problem, cold_bytes, bytes_per_weight)
    if problem.op == "embedding" and problem.integer("vocab") > EMBEDDING_ROWS:
        note = f"{EMBEDDING_ROWS} of {problem['vocab']} rows"
        return Part(problem.replace(vocab=EMBEDDING_ROWS), 1.0, note)
    n_bytes = weight_bytes(problem, bytes_per_weight)
    limit = min(max(2 * cold_bytes, MIN_PART_BYTES), MAX_COPY_BYTES)
    if problem.op != "linear" or n_bytes <= limit:
        return Part(problem)
    n, pieces = problem.integer("n"), math.ceil(n_bytes / limit)
    rows = max(TILE_ROWS, n // pieces // TILE_ROWS * TILE_ROWS)
    return Part(problem.replace(n=rows), n / rows, f"{rows} of {n} rows")


def _experts(problem: Problem, cold_bytes: int, bytes_per_weight: float | None) -> Part:
    experts, top_k, tokens = (problem.integer(name) for name in ("experts", "top_k", "tokens"))
    one = max(1, weight_bytes(problem, bytes_per_weight) // experts)
    # More than the cache, at least two disjoint sets of a token's experts, and no more than memory allows.
    subset = max(cold_bytes // one + 1, 2 * top_k)
    subset = min(experts, max(top_k, min(subset, MAX_COPY_BYTES // one)))
    if subset == experts:
        return Part(problem)
    note = f"{subset} of {experts} experts"
    if expected_experts(experts, top_k, tokens) <= subset:
        return Part(problem.replace(experts=subset), 1.0, note)
    part_tokens = max(1, round(tokens * subset / experts))
    return Part(
        problem.replace(experts=subset, tokens=part_tokens), tokens / part_tokens, f"{note}, {part_tokens} tokens"
    )
