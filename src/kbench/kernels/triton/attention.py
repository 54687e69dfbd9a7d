"""Attention of decode: the launches that a step's tokens take, on any device.

::

    take_rows  ->  split_latent or split_heads  ->  combine_splits

See ``attention_kernels``. How many splits there are follows from the cache's capacity, the heads and the chip, never
from how much is cached: launches can be recorded. Pages change in the table, which kernels read at every launch.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..page_table import PAGE_TOKENS
from ..torch_baseline import PagedCache
from .kept_kernel import KeptKernel
from .places import Places
from .small_ops import filled, on

if TYPE_CHECKING:
    import torch

# Cache types that tensor cores multiply as they are, by Triton's names.
KV_TYPES = {"f16": "fp16", "bf16": "bf16"}
# Tokens of one sequence that attend one by one: each reads all that is cached.
MAX_TOKENS = 4
# The widest vectors of which a program keeps a block in shared memory, and sums in registers.
MAX_LATENT, MAX_HEAD = 512, 256
# Past this, splits cost more to combine than their programs bring.
MAX_SPLITS = 128
# Where there is no chip to ask: enough that interpreted kernels split, too.
_INTERPRETED = 6
# Values of a row that a program combines; warps of one that takes a row: DeepSeek's latent at 16 bytes a thread.
_BLOCK_V, _TAKE_WARPS = 64, 4
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Split:
    """A program's block: ``heads`` by ``positions``, which divide a page, on ``warps`` warps; ``stages`` blocks are
    under way at once."""

    heads: int
    positions: int
    warps: int
    stages: int


def latent_split(heads: int) -> Split:
    """For ``heads`` of one latent."""
    return Split(16, 32, 4, 2) if heads <= 16 else Split(32, 32, 8, 2)


def head_split(group: int) -> Split:
    """For a ``group`` of heads that share keys and values."""
    return Split(16 if group <= 16 else 32, 64, 4, 2)


def n_splits(programs: int, positions: int, block: int, multiprocessors: int) -> int:
    """Into how many splits a cache of ``positions`` goes, for ``programs`` that each has: two for each multiprocessor,
    so that one computes while the other waits for memory."""
    return max(1, min(2 * multiprocessors // programs, -(-positions // block), MAX_SPLITS))


def attend_latent(
    q: torch.Tensor,
    new: torch.Tensor,
    cache: PagedCache,
    at: Places,
    scale: float,
    heads: int,
    kv_lora: int,
    window: int,
) -> torch.Tensor:
    """``q [tokens, heads * (kv_lora + rope)]`` over the cached latents and ``new [tokens, kv_lora + rope]``, which are
    appended: ``[tokens, heads * kv_lora]``. Float32, but for what is cached."""
    from . import attention_kernels  # triton compiles for a GPU, or interprets

    tokens, width, capacity = len(q), new.shape[1], cache.capacity
    split = latent_split(heads)
    blocks = -(-heads // split.heads)
    splits = n_splits(
        blocks * tokens, min(window or capacity, capacity), split.positions, _multiprocessors(str(q.device))
    )
    parts = _Parts.empty(q, tokens, heads, splits, kv_lora)
    with on(q):
        attention_kernels.split_latent[(blocks, splits, tokens)](
            *_take(q, new, None, cache, at), cache.k, cache.table, at.sequences, at.positions, *parts.tensors,
            scale * _LOG2_E, heads, cache.table.shape[1], window, splits,
            **latent_constants(kv_lora, width - kv_lora, split, q.device.type == "cpu"), **_options(split),
        )  # fmt: skip
        return parts.combine(at, window, split, None)


def attend_heads(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: PagedCache, at: Places, scale: float, window: int,
    sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """``q [tokens, heads * d]`` over the cached keys and values and ``k``, ``v [tokens, kv_heads * d]``, which are
    appended: ``[tokens, heads * d]``. Float32, but for what is cached."""
    from . import attention_kernels

    kv_heads, slots, d = cache.k.shape
    tokens, heads, capacity = len(q), q.shape[1] // d, cache.capacity
    split = head_split(heads // kv_heads)
    programs = kv_heads * -(-(heads // kv_heads) // split.heads)
    splits = n_splits(
        programs * tokens, min(window or capacity, capacity), split.positions, _multiprocessors(str(q.device))
    )
    parts = _Parts.empty(q, tokens, heads, splits, d)
    with on(q):
        attention_kernels.split_heads[(programs, splits, tokens)](
            *_take(q, k, v, cache, at), cache.k, cache.v, cache.table, at.sequences, at.positions, *parts.tensors,
            scale * _LOG2_E, kv_heads, cache.table.shape[1], slots, window, splits,
            **head_constants(d, heads // kv_heads, split, q.device.type == "cpu"), **_options(split),
        )  # fmt: skip
        return parts.combine(at, window, split, sinks)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What splits leave to be combined: weighted values, largest scores, sums of weights."""

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    @classmethod
    def empty(cls, like: torch.Tensor, tokens: int, heads: int, splits: int, width: int) -> _Parts:
        values = like.new_empty(tokens, heads, splits, width)
        return cls((values, like.new_empty(tokens, heads, splits), like.new_empty(tokens, heads, splits)))

    def combine(self, at: Places, window: int, split: Split, sinks: torch.Tensor | None) -> torch.Tensor:
        from . import attention_kernels

        tokens, heads, splits, width = self.tensors[0].shape
        out = self.tensors[0].new_empty(tokens, heads * width)
        attention_kernels.combine_splits[(tokens * heads, -(-width // _BLOCK_V))](
            *self.tensors, out if sinks is None else sinks, at.positions, out, heads, width, window, splits,
            **combine_constants(splits, split, sinks is not None), num_warps=4,
        )  # fmt: skip
        return out


def _take(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, cache: PagedCache, at: Places
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries in the cache's type, and what they are to be multiplied by; ``k`` and ``v`` are appended."""
    from . import attention_kernels

    kv_heads, slots, width = cache.k.shape
    tokens, heads = len(q), q.shape[1] // width
    queries, factors = cache.k.new_empty(q.shape), q.new_empty(tokens, heads)
    attention_kernels.take_rows[(tokens, heads + (kv_heads if v is None else 2 * kv_heads))](
        q.contiguous(), k.contiguous(), k if v is None else v.contiguous(), queries, factors, cache.k, cache.v,
        cache.table, at.sequences, at.positions, cache.table.shape[1], slots, heads, kv_heads, width,
        **take_constants(width), num_warps=_TAKE_WARPS,
    )  # fmt: skip
    return queries, factors


def take_constants(width: int) -> dict[str, Any]:
    """What is compiled into ``take_rows``."""
    return {"PAGE": PAGE_TOKENS, "BLOCK": filled(width)}


def latent_constants(kv_lora: int, rope: int, split: Split, interpreted: bool) -> dict[str, Any]:
    """What is compiled into ``split_latent``."""
    return {
        "PAGE": PAGE_TOKENS, "KV_LORA": kv_lora, "ROPE": rope, "BLOCK_C": _filled(kv_lora), "BLOCK_R": _filled(rope),
        "BLOCK_H": split.heads, "BLOCK_N": split.positions, "WIDE": interpreted,
    }  # fmt: skip


def head_constants(d: int, group: int, split: Split, interpreted: bool) -> dict[str, Any]:
    """What is compiled into ``split_heads``."""
    return {
        "PAGE": PAGE_TOKENS, "D": d, "GROUP": group, "BLOCK_D": _filled(d), "BLOCK_H": split.heads,
        "BLOCK_N": split.positions, "WIDE": interpreted,
    }  # fmt: skip


def combine_constants(splits: int, split: Split, sinks: bool) -> dict[str, Any]:
    """What is compiled into ``combine_splits``."""
    return {
        "SINKS": sinks, "BLOCK_S": filled(splits), "BLOCK_V": _BLOCK_V, "BLOCK_N": split.positions,
    }  # fmt: skip


def _filled(width: int) -> int:
    """The power of two that holds ``width``, and that tensor cores take."""
    return max(16, filled(width))


def _options(split: Split) -> dict[str, int]:
    return {"num_warps": split.warps, "num_stages": split.stages}


@functools.lru_cache(maxsize=32)
def _multiprocessors(place: str) -> int:
    if place == "cpu":
        return _INTERPRETED
    import torch

    return torch.cuda.get_device_properties(place).multi_processor_count


# What is compiled ahead of time: heads of DeepSeek-V2-Lite, of V2 and V3, whose latents are alike; (heads of a group,
# d) of Llama 3 and of Qwen2.5-0.5B.
_LATENT_HEADS, _KV_LORA, _ROPE = (16, 128), 512, 64
_GROUPS = ((4, 128), (7, 64))


def kept_kernels() -> Iterator[KeptKernel]:
    """Attention of known models, in both cache types."""
    index = dict.fromkeys(("table", "sequences", "positions"), "*i32")
    left = dict.fromkeys(("partial", "tops", "totals"), "*fp32")
    for width, name in ((_KV_LORA + _ROPE, "bf16"), (128, "f16")):
        stored = f"*{KV_TYPES[name]}"
        yield KeptKernel(
            "attention_kernels.take_rows",
            f"{name}, {width}",
            {
                **dict.fromkeys(("q", "k", "v", "factors"), "*fp32"),
                **dict.fromkeys(("queries", "k_cache", "v_cache"), stored), **index,
                **dict.fromkeys(("pages", "slots", "heads", "kv_heads", "width"), "i32"),
            },
            take_constants(width),
            _TAKE_WARPS,
            multiples=("width",),
            wide_loads=width > 128,  # a warp has them all
        )  # fmt: skip
    for heads, (name, kv) in itertools.product(_LATENT_HEADS, KV_TYPES.items()):
        split, stored = latent_split(heads), f"*{kv}"
        sizes = dict.fromkeys(("heads", "pages", "window", "splits"), "i32")
        yield KeptKernel(
            "attention_kernels.split_latent",
            f"{name}, {heads} heads",
            {"q": stored, "factors": "*fp32", "latents": stored, **index, **left, "scale": "fp32", **sizes},
            latent_constants(_KV_LORA, _ROPE, split, interpreted=False),
            split.warps,
            split.stages,
            tensor_cores=True,
        )
    for (group, d), (name, kv) in itertools.product(_GROUPS, KV_TYPES.items()):
        split, stored = head_split(group), f"*{kv}"
        sizes = dict.fromkeys(("kv_heads", "pages", "slots", "window", "splits"), "i32")
        yield KeptKernel(
            "attention_kernels.split_heads",
            f"{name}, {group} heads of {d}",
            {"q": stored, "factors": "*fp32", "k": stored, "v": stored, **index, **left, "scale": "fp32", **sizes},
            head_constants(d, group, split, interpreted=False),
            split.warps,
            split.stages,
            tensor_cores=True,
        )
    for splits, sinks in ((16, False), (MAX_SPLITS, True)):
        sizes = dict.fromkeys(("heads", "width", "window", "splits"), "i32")
        yield KeptKernel(
            "attention_kernels.combine_splits",
            f"{splits} splits{' + sinks' if sinks else ''}",
            {**left, "sinks": "*fp32", "positions": "*i32", "out": "*fp32", **sizes},
            combine_constants(splits, latent_split(16), sinks),
            4,
            multiples=("width",),
        )
