"""The next token, chosen where the logits are: see ``sampling_kernels``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .kept_kernel import KeptKernel
from .small_ops import filled, on
from .tile import launch_options

if TYPE_CHECKING:
    import torch

# Candidates that a program sorts out at once; logits of a block and of a round over what blocks left.
MAX_CANDIDATES, _BLOCK = 128, 1024
# Of a thread that sorts out many candidates of a row: left to itself the compiler takes 64 on chips like sm_80, which
# leaves a value without one.
_ROW_REGISTERS = 80


def largest(
    logits: torch.Tensor, top_k: int, block: int = _BLOCK, finite: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(ids int32, values)`` of the ``top_k <= MAX_CANDIDATES`` largest of each row of ``logits [rows, vocab]``,
    largest first; of equal ones the lower id. A program has ``block`` of them, a power of two. ``finite``: they must
    be finite numbers; of a row that has others one of them is found first, as NaN."""
    import torch

    from . import sampling_kernels  # triton compiles for a GPU, or interprets

    rows, vocab = logits.shape
    k, blocks = filled(top_k), -(-vocab // block)
    keys = torch.empty(rows, blocks, k, dtype=torch.int64, device=logits.device)
    ids = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    values = torch.empty(rows, top_k, device=logits.device)
    with on(logits):
        sampling_kernels.largest_of_blocks[(blocks, rows)](
            logits.contiguous(), keys, vocab, blocks, FINITE=finite, K=k, BLOCK=block, num_warps=4
        )
        sampling_kernels.largest_of_row[(rows,)](
            keys, ids, values, blocks * k, top_k, K=k, BLOCK=block, **launch_options(4, 3, _row_registers(k))
        )
    return ids, values


def settings(top_p: float, min_p: float, temperature: float, place: str) -> torch.Tensor:
    """What ``draw`` reads, float64, on torch device ``place``. ``temperature`` must not be 0."""
    import torch

    return torch.tensor(setting_numbers(top_p, min_p, temperature), dtype=torch.float64, device=place)


def setting_numbers(top_p: float, min_p: float, temperature: float) -> list[float]:
    """The same, on the host."""
    # Every sum of probabilities is below 2: with a top_p of 1 none is cut off by rounding.
    return [2.0 if top_p >= 1 else top_p, math.log(min_p) if min_p > 0 else -math.inf, temperature]


def draw(
    ids: torch.Tensor, values: torch.Tensor, settings: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(token int32 [rows], probabilities float64 [rows, n])``: one of the candidates that ``largest`` found, drawn by
    the random numbers ``uniform [rows] float64`` from [0, 1); ``-1 - id`` where the largest, ``id``, is NaN."""
    import torch

    from . import sampling_kernels

    rows, n = ids.shape
    probabilities = torch.empty(rows, n, dtype=torch.float64, device=ids.device)
    chosen = torch.empty(rows, dtype=torch.int32, device=ids.device)
    with on(ids):
        sampling_kernels.draw[(rows,)](
            ids, values, settings, uniform, probabilities, chosen, n, K=filled(n), num_warps=1
        )
    return chosen, probabilities


def _row_registers(k: int) -> int:
    """Of a thread that sorts out ``k`` candidates; 0: as many as the compiler likes."""
    return _ROW_REGISTERS if k > 1 else 0


def kept_kernels() -> Iterator[KeptKernel]:
    """Greedy, and the usual forty candidates."""
    for k in (1, 64):
        yield KeptKernel(
            "sampling_kernels.largest_of_blocks",
            f"{k} of {_BLOCK}",
            {"logits": "*fp32", "keys": "*i64", "vocab": "i32", "blocks": "i32"},
            {"FINITE": True, "K": k, "BLOCK": _BLOCK},
            4,
            multiples=("vocab",),
        )
    for k in (1, 64):
        yield KeptKernel(
            "sampling_kernels.largest_of_row",
            f"{k} of {_BLOCK}",
            {"keys": "*i64", "ids": "*i32", "values": "*fp32", "n": "i32", "top_k": "i32"},
            {"K": k, "BLOCK": _BLOCK},
            4,
            multiples=("n",),
            registers=_row_registers(k),
        )
    for k in (1, 64):
        yield KeptKernel(
            "sampling_kernels.draw",
            f"{k}",
            {
                "ids": "*i32", "values": "*fp32", "settings": "*fp64", "uniform": "*fp64", "probabilities": "*fp64",
                "chosen": "*i32", "n": "i32",
            },
            {"K": k},
            1,
            wide_loads=False,  # few candidates
        )  # fmt: skip
