"""Triton kernels that sort pairs (token, choice) by expert: a counting sort whose launches depend on shapes alone.

Experts stand at slots, the places of their matrices; pairs whose expert has none go behind all others, to slot
``n_slots``. ``SLOTS`` is the power of two above ``n_slots``::

    count_pairs   a program for each BLOCK pairs:  counts[block, slot]
    place_slots   one program:                     counts -> position of the block's first pair of that slot;
                                                   tiles -> which slot and which positions each of them has
    place_pairs   a program for each BLOCK pairs:  order[position] = pair, in each slot by rising pair
"""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slot_of(ids, slots, pair, here, experts, nowhere):
    """Where the matrices of the expert of ``pair`` are; ``nowhere``, if they are not here or there is no such
    expert."""
    expert = tl.load(ids + pair, mask=here, other=-1)
    there = here & (expert >= 0) & (expert < experts)
    slot = tl.load(slots + expert, mask=there, other=-1)
    return tl.where(slot >= 0, slot, nowhere)


@triton.jit
def count_pairs(ids, slots, counts, pairs, experts, n_slots, BLOCK: tl.constexpr, SLOTS: tl.constexpr):
    """``counts int32 [blocks, SLOTS]``: pairs of each block by slot."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = slot_of(ids, slots, pair, pair < pairs, experts, n_slots)
    # Pairs that do not exist count behind all that do.
    found = tl.histogram(slot, SLOTS)
    tl.store(counts + tl.program_id(0) * SLOTS + tl.arange(0, SLOTS), found)


@triton.jit
def place_slots(
    counts, tiles, n_tiles, n_present, blocks, n_slots, bound,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """``counts`` become positions. ``tiles int32 [3, bound]``: slot, first position and the one behind the last, of up
    to ``BLOCK_M`` pairs; ``n_tiles`` of them are used, for the ``n_present`` pairs that have a slot."""
    slot = tl.arange(0, SLOTS)
    row = tl.arange(0, ROWS)[:, None]
    total = tl.zeros((SLOTS,), dtype=tl.int32)
    for first in range(0, blocks, ROWS):
        part = tl.load(counts + (first + row) * SLOTS + slot[None, :], mask=first + row < blocks, other=0)
        total += tl.sum(part, axis=0)
    start = tl.cumsum(total, axis=0) - total
    before = start
    for first in range(0, blocks, ROWS):
        at = counts + (first + row) * SLOTS + slot[None, :]
        part = tl.load(at, mask=first + row < blocks, other=0)
        tl.store(at, before[None, :] + tl.cumsum(part, axis=0) - part, mask=first + row < blocks)
        before += tl.sum(part, axis=0)
    used = tl.where(slot < n_slots, (total + BLOCK_M - 1) // BLOCK_M, 0)
    first_tile = tl.cumsum(used, axis=0) - used
    for i in range(tl.max(used, axis=0)):
        to = tiles + first_tile + i
        tl.store(to, slot, mask=i < used)
        tl.store(to + bound, start + i * BLOCK_M, mask=i < used)
        tl.store(to + 2 * bound, tl.minimum(start + (i + 1) * BLOCK_M, start + total), mask=i < used)
    tl.store(n_tiles, tl.sum(used, axis=0))
    tl.store(n_present, tl.sum(tl.where(slot < n_slots, total, 0), axis=0))


@triton.jit
def place_pairs(
    ids, slots, positions, order, pairs, experts, n_slots, BLOCK: tl.constexpr, STEP: tl.constexpr, SLOTS: tl.constexpr
):
    """``order int32 [pairs]``; ``positions`` is what ``counts`` became."""
    first = tl.program_id(0) * BLOCK
    pair = first + tl.arange(0, BLOCK)
    slot = slot_of(ids, slots, pair, pair < pairs, experts, n_slots)
    rank = tl.zeros((BLOCK,), dtype=tl.int32)
    for step in range(0, BLOCK, STEP):
        other = first + step + tl.arange(0, STEP)
        its_slot = slot_of(ids, slots, other, other < pairs, experts, n_slots)
        before = (its_slot[None, :] == slot[:, None]) & (other[None, :] < pair[:, None])
        rank += tl.sum(before.to(tl.int32), axis=1)
    to = tl.load(positions + tl.program_id(0) * SLOTS + slot) + rank
    tl.store(order + to, pair, mask=pair < pairs)
