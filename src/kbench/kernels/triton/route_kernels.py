"""Triton kernel that chooses a token's experts: one program a token, no value leaves the GPU."""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _largest(values):
    """Of all elements of ``values [a, b]``."""
    return tl.max(tl.max(values, axis=1), axis=0)


@triton.jit
def _first(found, index, NOWHERE: tl.constexpr):
    """The smallest ``index`` where ``found``: ties go to the lower one. ``[a, b]``."""
    return tl.min(tl.min(tl.where(found, index, NOWHERE), axis=1), axis=0)


@triton.jit
def route(
    logits, bias, ids, weights, experts, groups, size, kept, scaling,
    TOP_K: tl.constexpr, SOFTMAX: tl.constexpr, BIASED: tl.constexpr, NORMALISED: tl.constexpr,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """``ids int32, weights float32 [tokens, TOP_K]`` of ``logits float32 [tokens, experts]``, best first.

    Experts are ``groups`` of ``size`` neighbours; only those of the best ``kept`` groups are chosen. ``GROUPS``,
    ``SIZE`` and ``CHOICES`` are the powers of two not below ``groups``, ``size`` and ``TOP_K``. With ``BIASED`` the
    choice adds ``bias [experts]``, which weights do not, and a group counts by its best two experts instead of its
    best one.
    """
    token = tl.program_id(0)
    group = tl.arange(0, GROUPS)[:, None]
    member = tl.arange(0, SIZE)[None, :]
    expert = group * size + member
    here = (group < groups) & (member < size)
    wide = token.to(tl.int64)
    score = tl.load(logits + wide * experts + expert, mask=here, other=float("-inf"))
    if SOFTMAX:
        score = tl.exp(score - _largest(score))
        score = score / tl.sum(tl.sum(score, axis=1), axis=0)
    else:
        score = 1.0 / (1.0 + tl.exp(-score))
    choice = score
    if BIASED:
        choice += tl.load(bias + expert, mask=here, other=0)
    # No number compares with NaN, and every token needs experts that exist.
    choice = tl.where(here & (choice == choice), choice, float("-inf"))
    taken = expert >= experts
    taken = taken | ~here
    if GROUPS > 1:
        best = tl.max(choice, axis=1)
        if BIASED:
            leader = tl.min(tl.where(choice == best[:, None], member, SIZE), axis=1)
            second = tl.max(tl.where(member == leader[:, None], float("-inf"), choice), axis=1)
            best = tl.where(size > 1, best + second, best)
        place = tl.arange(0, GROUPS)
        left = tl.where(place < groups, best, float("-inf"))
        open_groups = place < 0
        closed = place >= groups
        for _ in range(kept):
            highest = tl.max(tl.where(closed, float("-inf"), left), axis=0)
            which = tl.min(tl.where((left == highest) & ~closed, place, GROUPS), axis=0)
            open_groups = open_groups | (place == which)
            closed = closed | (place == which)
        choice = tl.where(open_groups[:, None], choice, float("-inf"))
    rank = tl.arange(0, CHOICES)
    chosen = tl.zeros((CHOICES,), dtype=tl.int32)
    weight = tl.zeros((CHOICES,), dtype=tl.float32)
    for i in range(TOP_K):
        top = _largest(tl.where(taken, float("-inf"), choice))
        at = _first((choice == top) & ~taken, expert, GROUPS * SIZE)
        chosen = tl.where(rank == i, at, chosen)
        weight = tl.where(rank == i, tl.sum(tl.sum(tl.where(expert == at, score, 0.0), axis=1), axis=0), weight)
        taken = taken | (expert == at)
    if NORMALISED:
        weight = weight / (tl.sum(weight, axis=0) + 1e-20)  # as DeepSeek guards an all-zero row
    to = wide * TOP_K + rank
    tl.store(ids + to, chosen, mask=rank < TOP_K)
    tl.store(weights + to, weight * scaling, mask=rank < TOP_K)
