"""Triton kernels that choose a token where the logits are: the largest of a row, and one drawn of them.

A logit and its id are one 64-bit number, ordered as logits are, of equal ones the lower id first::

    63            32 31             0
    |  order(logit) | 2^31 - 1 - id |     order: the float's bits, turned so that they compare as whole numbers

``largest_of_blocks`` sorts out the ``K`` largest of each block of a row, ``largest_of_row`` those of all blocks.
"""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _keys(logits, ids, here, FINITE: tl.constexpr):
    bits = logits.to(tl.int32, bitcast=True)
    if FINITE:  # what is not a finite number is found first: as a NaN that sorts before everything
        bits = tl.where((bits & 0x7F800000) == 0x7F800000, 0x7FFFFFFF, bits)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    # What is not there sorts behind everything: no float32's bits reach it.
    return tl.where(here, (order << 32) | (0x7FFFFFFF - ids).to(tl.int64), -0x8000000000000000)


@triton.jit
def _ids(keys):
    return 0x7FFFFFFF - (keys & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _logits(keys):
    order = (keys >> 32).to(tl.int32)
    return tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)


@triton.jit
def largest_of_blocks(
    logits, keys, vocab, blocks, FINITE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``keys [rows, blocks, K]`` of ``logits [rows, vocab]``. ``FINITE``: those that are no finite numbers are NaN, and
    the largest."""
    block, row = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    here = at < vocab
    values = tl.load(logits + row.to(tl.int64) * vocab + at, mask=here, other=0)
    found = tl.topk(_keys(values, at, here, FINITE), K)
    tl.store(keys + (row * blocks + block) * K + tl.arange(0, K), found)


@triton.jit
def largest_of_row(keys, ids, values, n, top_k, K: tl.constexpr, BLOCK: tl.constexpr):
    """``ids``, ``values [rows, top_k]``, largest first, of ``keys [rows, n]``."""
    row = tl.program_id(0)
    found = tl.full((K,), -0x8000000000000000, tl.int64)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        more = tl.topk(tl.load(keys + row * n + at, mask=at < n, other=-0x8000000000000000), K)
        found = tl.topk(tl.reshape(tl.join(found, more), (2 * K,)), K)
    rank = tl.arange(0, K)
    tl.store(ids + row * top_k + rank, _ids(found), mask=rank < top_k)
    tl.store(values + row * top_k + rank, _logits(found), mask=rank < top_k)


@triton.jit
def draw(ids, values, settings, uniform, probabilities, chosen, n, K: tl.constexpr):
    """One of ``n`` candidates a row, largest logit first. ``settings`` float64: top_p, the logarithm of min_p,
    temperature. Of the likeliest that together reach top_p, and are at least min_p of the likeliest, the one at which
    the cumulative sum at that temperature passes ``uniform [rows] float64``; ``probabilities [rows, n]``. Where the
    largest logit of a row is NaN its ``chosen`` is ``-1 - id`` of that."""
    row = tl.program_id(0)
    rank = tl.arange(0, K)
    here = rank < n
    logits = tl.load(values + row * n + rank, mask=here, other=float("-inf")).to(tl.float64)
    first = tl.max(logits, axis=0)
    share = tl.exp(logits - first)
    share /= tl.sum(share, axis=0)
    # The first position at which the sum reaches top_p is kept too: what is before it has not.
    before = tl.cumsum(share, axis=0) - share
    kept = here & (before < tl.load(settings)) & (logits >= first + tl.load(settings + 1))
    weight = tl.where(kept, tl.exp((logits - first) / tl.load(settings + 2)), 0.0)
    weight /= tl.sum(weight, axis=0)
    tl.store(probabilities + row * n + rank, weight, mask=here)
    passed = kept & (tl.cumsum(weight, axis=0) <= tl.load(uniform + row))
    # A sum that rounds to just under the draw leaves the last one.
    at = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), tl.sum(kept.to(tl.int32), axis=0) - 1)
    # With a NaN nothing is kept.
    token = tl.load(ids + row * n + tl.maximum(at, 0))
    largest = tl.load(values + row * n)
    tl.store(chosen + row, tl.where(largest == largest, token, -1 - tl.load(ids + row * n)))
