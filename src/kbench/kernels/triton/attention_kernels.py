"""Triton kernels for a step of decode: every token of it attends to what its sequence has cached.

One sequence does not fill a GPU head by head, so the cached positions are shared out (split-KV)::

    take_rows        program (token, row): a new key or value into its slot, or a query made ready.
    split_latent     program (heads, split, token): largest score, sum of weights and weighted values of a run of
    split_heads      positions, for as many heads as read the same cached rows, 16 at least: tensor cores multiply
                     them. A cached row is read once for all of them, 16 bytes a thread.
    combine_splits   program (token and head, values): the splits of a row, weighed against each other.

A program finds its run of positions by the token's position, which it reads from the GPU's memory: launches depend on
the cache's capacity alone, and can be recorded once and replayed for every token. Splits that a short context leaves
over end at once, and what they would have written is not read.

Caches lie in pages, and ``table [sequences, pages]`` says on which a sequence's tokens are. A block of ``BLOCK_N``
positions begins at a multiple of it, and ``PAGE`` is one too: so a block lies on one page, found once for all of it::

    position p    page number table[sequence, p // PAGE % pages], row p % PAGE of it
    row           of [kv_heads, slots, width]:  head, page * PAGE + p % PAGE

Scores are in units of ``ln 2``: powers of two are one instruction. Rows that no token sees, and pages that no table
names, are never read.
"""

# Triton's parameters have no Python types.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _nearest(x, like: tl.constexpr):
    """``x float32`` in type ``like``, to nearest, ties to even: for bfloat16 spelt out, as interpreted conversions cut
    off."""
    if like == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        up = bits + 0x7FFF + ((bits >> 16) & 1)
        found = (tl.where(x == x, up, bits) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        found = x.to(like)
    return found


@triton.jit
def take_rows(
    q, k, v, queries, factors, k_cache, v_cache, table, sequences, positions, pages, slots, heads, kv_heads, width,
    PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A token's new rows, one a program, each ``width`` long: ``heads`` of ``q``, ``kv_heads`` of ``k``, and as many of
    ``v`` as programs are left.

    Queries go to ``queries`` in the cache's type, as fractions of their largest magnitude, which fit any type, and
    that to ``factors [tokens, heads]``. Keys and values go to their pages of ``[kv_heads, slots, width]``."""
    token, row = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    here = column < width
    low: tl.constexpr = k_cache.dtype.element_ty
    if row < heads:
        at = (token * heads + row).to(tl.int64) * width + column
        values = tl.load(q + at, mask=here, other=0)
        largest = tl.max(tl.abs(values), axis=0)
        largest = tl.where(largest > 0, largest, 1.0)
        tl.store(queries + at, _nearest(values / largest, low), mask=here)
        tl.store(factors + token * heads + row, largest)
    else:
        is_key = row < heads + kv_heads
        head = (row - heads) % kv_heads
        at = (token * kv_heads + head).to(tl.int64) * width + column
        position = tl.load(positions + token).to(tl.int32)
        page = tl.load(table + tl.load(sequences + token).to(tl.int64) * pages + position // PAGE % pages)
        to = (head.to(tl.int64) * slots + page.to(tl.int64) * PAGE + position % PAGE) * width + column
        if is_key:
            tl.store(k_cache + to, _nearest(tl.load(k + at, mask=here, other=0), low), mask=here)
        else:
            tl.store(v_cache + to, _nearest(tl.load(v + at, mask=here, other=0), low), mask=here)


@triton.jit
def _run(position, window, splits, split, BLOCK_N: tl.constexpr):
    """The first position that is seen, and the positions ``[begin, end)`` of a split: whole blocks, but that it ends
    with what is seen. A window may begin within the first block."""
    seen = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    first = seen // BLOCK_N * BLOCK_N
    length = tl.cdiv(tl.cdiv(position + 1 - first, splits), BLOCK_N) * BLOCK_N
    begin = first + split * length
    return seen, begin, tl.minimum(begin + length, position + 1)


@triton.jit
def _block(row, at, pages, PAGE: tl.constexpr):
    """Where the block of positions from ``at`` on begins, in slots of a head; ``row``: its sequence's of the table."""
    page = tl.load(row + at // PAGE % pages)
    return page.to(tl.int64) * PAGE + at % PAGE


@triton.jit
def _operand(x, like: tl.constexpr, WIDE: tl.constexpr):
    """``x`` in the type of the cache; ``WIDE`` (the interpreter multiplies no bfloat16): and then in float32 again."""
    if WIDE:
        if x.dtype == like:
            found = x.to(tl.float32)
        else:
            found = _nearest(x, like).to(tl.float32)
    else:
        found = x.to(like)
    return found


@triton.jit
def _softmax_step(scores, here, top, total, sums):
    """One more block of scores ``[heads, positions]``: their weights against the new largest one, and what was summed
    up so far, brought down to it."""
    scores = tl.where(here[None, :], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, axis=1))
    fade = tl.exp2(top - higher)
    weights = tl.exp2(scores - higher[:, None])
    return weights, higher, total * fade + tl.sum(weights, axis=1), sums * fade[:, None]


@triton.jit
def split_latent(
    q, factors, latents, table, sequences, positions, partial, tops, totals, scale, heads, pages, window, splits,
    PAGE: tl.constexpr, KV_LORA: tl.constexpr, ROPE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``q [tokens, heads, KV_LORA + ROPE]``, each row times its one of ``factors``, over ``latents [1, slots,
    KV_LORA + ROPE]``, whose first part is the values too. ``scale``: of scores, over ``ln 2``. Fills
    ``partial [tokens, heads, splits, KV_LORA]`` and ``tops``, ``totals [tokens, heads, splits]``."""
    split, token = tl.program_id(1), tl.program_id(2)
    seen, begin, end = _run(tl.load(positions + token).to(tl.int32), window, splits, split, BLOCK_N)
    if begin < end:
        width: tl.constexpr = KV_LORA + ROPE
        low: tl.constexpr = latents.dtype.element_ty
        head = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
        c, r = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_R)
        is_c, is_r = c < KV_LORA, r < ROPE
        row = (token * heads + head)[:, None]
        is_head = (head < heads)[:, None]
        q_c = tl.load(q + row * width + c[None, :], mask=is_head & is_c[None, :], other=0)
        q_r = tl.load(q + row * width + KV_LORA + r[None, :], mask=is_head & is_r[None, :], other=0)
        q_c, q_r = _operand(q_c, low, WIDE), _operand(q_r, low, WIDE)
        factor = tl.load(factors + token * heads + head, mask=head < heads, other=0) * scale
        pages_here = table + tl.load(sequences + token).to(tl.int64) * pages
        n = tl.arange(0, BLOCK_N)
        top = tl.full((BLOCK_H,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_H,), tl.float32)
        sums = tl.zeros((BLOCK_H, BLOCK_C), tl.float32)
        for at in range(begin, end, BLOCK_N):
            here = (at + n >= seen) & (at + n < end)
            of_row = latents + _block(pages_here, at, pages, PAGE) * width + n[:, None] * width
            latent = tl.load(of_row + c[None, :], mask=here[:, None] & is_c[None, :], other=0)
            rotated = tl.load(of_row + KV_LORA + r[None, :], mask=here[:, None] & is_r[None, :], other=0)
            latent, rotated = _operand(latent, low, WIDE), _operand(rotated, low, WIDE)
            scores = tl.dot(q_r, tl.trans(rotated))
            scores = tl.dot(q_c, tl.trans(latent), scores)
            weights, top, total, sums = _softmax_step(scores * factor[:, None], here, top, total, sums)
            sums = tl.dot(_operand(weights, low, WIDE), latent, sums)
        to = row * splits + split
        tl.store(partial + to.to(tl.int64) * KV_LORA + c[None, :], sums, mask=is_head & is_c[None, :])
        to = (token * heads + head) * splits + split
        tl.store(tops + to, top, mask=head < heads)
        tl.store(totals + to, total, mask=head < heads)


@triton.jit
def split_heads(
    q, factors, k, v, table, sequences, positions, partial, tops, totals, scale, kv_heads, pages, slots, window, splits,
    PAGE: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """As ``split_latent``: ``q [tokens, kv_heads * GROUP, D]`` over ``k``, ``v [kv_heads, slots, D]``. A program has up
    to ``BLOCK_H`` heads of one group."""
    split, token = tl.program_id(1), tl.program_id(2)
    seen, begin, end = _run(tl.load(positions + token).to(tl.int32), window, splits, split, BLOCK_N)
    if begin < end:
        low: tl.constexpr = k.dtype.element_ty
        blocks: tl.constexpr = (GROUP + BLOCK_H - 1) // BLOCK_H
        kv_head = tl.program_id(0) // blocks
        member = tl.program_id(0) % blocks * BLOCK_H + tl.arange(0, BLOCK_H)
        d = tl.arange(0, BLOCK_D)
        is_d = (d < D)[None, :]
        head_row = (token * kv_heads + kv_head) * GROUP + member
        row, is_head = head_row[:, None], (member < GROUP)[:, None]
        query = _operand(tl.load(q + row * D + d[None, :], mask=is_head & is_d, other=0), low, WIDE)
        factor = tl.load(factors + head_row, mask=member < GROUP, other=0) * scale
        pages_here = table + tl.load(sequences + token).to(tl.int64) * pages
        base = kv_head.to(tl.int64) * slots
        n = tl.arange(0, BLOCK_N)
        top = tl.full((BLOCK_H,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_H,), tl.float32)
        sums = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
        for at in range(begin, end, BLOCK_N):
            here = (at + n >= seen) & (at + n < end)
            of_row = (base + _block(pages_here, at, pages, PAGE)) * D + n[:, None] * D + d[None, :]
            keys = _operand(tl.load(k + of_row, mask=here[:, None] & is_d, other=0), low, WIDE)
            values = _operand(tl.load(v + of_row, mask=here[:, None] & is_d, other=0), low, WIDE)
            scores = tl.dot(query, tl.trans(keys)) * factor[:, None]
            weights, top, total, sums = _softmax_step(scores, here, top, total, sums)
            sums = tl.dot(_operand(weights, low, WIDE), values, sums)
        to = row * splits + split
        tl.store(partial + to.to(tl.int64) * D + d[None, :], sums, mask=is_head & is_d)
        to = head_row * splits + split
        tl.store(tops + to, top, mask=member < GROUP)
        tl.store(totals + to, total, mask=member < GROUP)


@triton.jit
def combine_splits(
    partial, tops, totals, sinks, positions, out, heads, width, window, splits,
    SINKS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out [tokens, heads, width]`` of what the splits left; ``BLOCK_N`` as theirs. ``sinks [heads]``: one more score
    of each row, whose value is zero."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    split = tl.arange(0, BLOCK_S)
    _, begin, end = _run(tl.load(positions + row // heads).to(tl.int32), window, splits, split, BLOCK_N)
    # A split beyond those that there are would begin within the positions where these do not reach the last.
    here = (begin < end) & (split < splits)
    to = row * splits + split
    top = tl.load(tops + to, mask=here, other=float("-inf"))
    total = tl.load(totals + to, mask=here, other=0)
    highest = tl.max(top, axis=0)
    sink = float("-inf")
    if SINKS:
        sink = tl.load(sinks + row % heads) * 1.4426950408889634  # 1 / ln 2
        highest = tl.maximum(highest, sink)
    share = tl.exp2(top - highest)
    whole = tl.sum(share * total, axis=0)
    if SINKS:
        whole += tl.exp2(sink - highest)
    inside = here[:, None] & (column < width)[None, :]
    sums = tl.load(partial + to.to(tl.int64)[:, None] * width + column[None, :], mask=inside, other=0)
    y = tl.sum(sums * (share / whole)[:, None], axis=0)
    tl.store(out + row.to(tl.int64) * width + column, y, mask=column < width)
