"""Routing and routed experts on a device: what is launched depends on shapes alone, so that a graph can hold it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kbench.core import Attribute, UserError

from ..reference import SCORINGS
from .chip import chip_at
from .expert_stack import ExpertLayer
from .planes import PlaneFormat
from .tile import launch_options, registers_of

if TYPE_CHECKING:
    import torch

# Tokens up to which each pair is multiplied for itself: of that few, most choose experts that no other chooses.
FEW_TOKENS = 8
# Pairs that a program counts and places at a time, others that it compares each with at a time, and rows of counts
# that are added up at a time: each a tile that fits registers.
PAIR_BLOCK, PAIR_STEP, COUNT_ROWS = 128, 32, 16
# Columns that a program of an elementwise kernel takes.
COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """``block_m`` pairs (1: each for itself) by ``block_n`` rows of gate and up, or ``down_n`` of down, a program."""

    block_m: int
    block_n: int
    down_n: int
    warps: int = 4
    stages: int = 3
    registers: int = 0  # of a thread; 0: as many as the compiler likes

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told at a launch."""
        return launch_options(self.warps, self.stages, self.registers)


# For itself a pair keeps rows of two matrices in registers, of gate and up. Three stages of Q8_0, 64 by 64, are more
# shared memory than chips like sm_86 have.
KEPT_EXPERT_TILES = (
    ExpertTile(1, 16, 32),
    ExpertTile(16, 32, 32),
    ExpertTile(32, 64, 64),
    ExpertTile(64, 64, 64, stages=2),
)
# As in ``tile``.
_REGISTERS = registers_of(
    {
        ("Q4_K", 16, 80): 104,
        ("Q4_K", 32, 80): 176,
        ("Q4_K", 64, 100): 128,
    }
)


def expert_tile(tokens: int, top_k: int, n_slots: int) -> ExpertTile:
    """A tile that fits any chip."""
    if tokens <= FEW_TOKENS:
        return KEPT_EXPERT_TILES[0]
    # As many rows as an expert has on average: less would read its weights again, more would multiply zeros.
    mean = tokens * top_k / n_slots
    return next((tile for tile in KEPT_EXPERT_TILES[1:] if mean <= tile.block_m), KEPT_EXPERT_TILES[-1])


def product_tile(tile: ExpertTile, fmt: PlaneFormat, capability: int) -> ExpertTile:
    """How products of many pairs with matrices of ``fmt`` are cut where ``tile`` is chosen, on one of ``CHIPS``."""
    return replace(tile, registers=_REGISTERS.get((fmt, tile.block_m, capability), 0))


def gate_up_rows(tile: ExpertTile, width: int) -> int:
    """Rows of gate and up that a program of ``tile`` takes at once of chunks ``width`` words wide: no fewer than give
    each thread 16 bytes."""
    return max(tile.block_n, 4 * 32 * tile.warps // width)


def most_tiles(pairs: int, n_slots: int, block_m: int) -> int:
    """Tiles of ``block_m`` pairs that ``pairs`` pairs take at most: each slot begins one, and every further one is
    full before the next begins."""
    begun = min(pairs, n_slots)
    return begun + (pairs - begun) // block_m


def route(
    logits: torch.Tensor, top_k: int, attrs: Mapping[str, Attribute], bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(ids int32, weights float32)`` of ``[tokens, top_k]``: ``reference.route``.

    Raises:
        UserError: a scoring that there is not.
    """
    import torch

    from . import route_kernels

    scoring = attrs.get("scoring", "softmax")
    if scoring not in SCORINGS:
        raise UserError(f"unknown scoring {scoring!r}", where="moe_router", accepted=", ".join(SCORINGS))
    tokens, experts = logits.shape
    groups, kept = int(attrs.get("n_group") or 1), int(attrs.get("topk_group") or 1)  # type: ignore[arg-type]
    if kept >= groups:
        groups, kept = 1, 1
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    size = experts // groups
    with _on(logits):
        route_kernels.route[(tokens,)](
            logits.contiguous(), logits if bias is None else bias, ids, weights, experts, groups, size, kept,
            float(attrs.get("routed_scaling") or 1.0),  # type: ignore[arg-type]
            TOP_K=top_k, SOFTMAX=scoring == "softmax", BIASED=bias is not None,
            NORMALISED=bool(attrs.get("norm_topk_prob")), GROUPS=_power(groups), SIZE=_power(size),
            CHOICES=_power(top_k), num_warps=1,
        )  # fmt: skip
    return ids, weights


@dataclass(frozen=True, slots=True)
class PairOrder:
    """Pairs sorted by slot, and cut into tiles; see ``order_kernels``."""

    order: torch.Tensor
    tiles: torch.Tensor
    n_tiles: torch.Tensor
    n_present: torch.Tensor


def sort_pairs(ids: torch.Tensor, slots: torch.Tensor, n_slots: int, block_m: int) -> PairOrder:
    """Sorts the pairs of ``ids [tokens, top_k] int32`` for tiles of ``block_m``."""
    import torch

    from . import order_kernels

    pairs, experts, width = ids.numel(), len(slots), _power(n_slots + 1)
    blocks, bound = -(-pairs // PAIR_BLOCK), most_tiles(pairs, n_slots, block_m)

    def integers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=ids.device)

    found = PairOrder(integers(pairs), integers(3, bound), integers(1), integers(1))
    counts, grid = integers(blocks, width), (blocks,)
    with _on(ids):
        order_kernels.count_pairs[grid](ids, slots, counts, pairs, experts, n_slots, BLOCK=PAIR_BLOCK, SLOTS=width)
        order_kernels.place_slots[(1,)](
            counts, found.tiles, found.n_tiles, found.n_present, blocks, n_slots, bound,
            ROWS=COUNT_ROWS, SLOTS=width, BLOCK_M=block_m,
        )  # fmt: skip
        order_kernels.place_pairs[grid](
            ids, slots, counts, found.order, pairs, experts, n_slots, BLOCK=PAIR_BLOCK, STEP=PAIR_STEP, SLOTS=width
        )
    return found


def run_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    scores: torch.Tensor,
    layer: ExpertLayer,
    clamp: tuple[float, float] | None = None,
    tile: ExpertTile | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, of those that are here: float32 ``[tokens, k]``.

    Up to ``FEW_TOKENS`` tokens in float32 throughout; beyond, activations and weights are rounded to float16 once each,
    before gate and up and again before down, and added up in float32.
    """
    import torch

    from . import expert_kernels

    (tokens, k), top_k = x.shape, ids.shape[1]
    pairs, n, n_slots, experts = tokens * top_k, layer.gate.n, layer.n_slots, len(layer.slots)
    tile = tile or expert_tile(tokens, top_k, n_slots)
    x, ids, scores = x.contiguous(), ids.contiguous(), scores.contiguous()
    alpha, limit = clamp or (1.0, 0.0)
    biases = layer.biases or (x, x, x)  # not read where there are none
    options: dict[str, Any] = {"BIASED": bool(layer.biases)}
    hidden = torch.empty(pairs, n, dtype=torch.float32, device=x.device)
    y = torch.empty(pairs, k, dtype=torch.float32, device=x.device)
    out = torch.empty(tokens, k, dtype=torch.float32, device=x.device)
    gate, up, down = (stack.planes.planes for stack in (layer.gate, layer.up, layer.down))
    with _on(x):
        if tile.block_m == 1:
            options |= tile.options
            rows = gate_up_rows(tile, min(layer.gate.planes.width, layer.up.planes.width))
            expert_kernels.few_gate_up[(-(-n // rows), pairs)](
                x, ids, layer.slots, *gate, biases[0], *up, biases[1], hidden, experts, n, k, layer.gate.chunks,
                layer.up.chunks, alpha, limit, GATE=layer.gate.format, UP=layer.up.format, TOP_K=top_k,
                CLAMPED=clamp is not None, BLOCK_N=rows, **options,
            )  # fmt: skip
            expert_kernels.few_down[(-(-k // tile.down_n), pairs)](
                hidden, ids, layer.slots, *down, biases[2], y, experts, k, n, layer.down.chunks,
                FORMAT=layer.down.format, BLOCK_N=tile.down_n, **options,
            )  # fmt: skip
        else:
            bound = most_tiles(pairs, n_slots, tile.block_m)
            sorted_ = sort_pairs(ids, layer.slots, n_slots, tile.block_m)
            half, scale = _as_halves(x)
            other = torch.empty(pairs, n, dtype=torch.float32, device=x.device)
            products = ((layer.gate, biases[0], hidden), (layer.up, biases[1], other), (layer.down, biases[2], y))
            for stack, bias, to in products:
                last = stack is layer.down
                if last:
                    half, scale = _as_halves(hidden, other, sorted_.n_present, clamp)
                cut = product_tile(tile, stack.planes.format, chip_at(x.device))
                expert_kernels.many_products[(bound, -(-to.shape[1] // cut.block_n))](
                    half, scale, sorted_.order, sorted_.tiles, sorted_.n_tiles, *stack.planes.planes, stack.unit, bias,
                    to, bound, to.shape[1], half.shape[1], stack.chunks, FORMAT=stack.format, TOP_K=top_k,
                    TO_PAIRS=last, BLOCK_M=cut.block_m, BLOCK_N=cut.block_n, **options, **cut.options,
                )  # fmt: skip
        expert_kernels.combine[(tokens, -(-k // COLUMNS))](
            y, ids, layer.slots, scores, out, experts, k, TOP_K=top_k, BLOCK=COLUMNS
        )
    return out


def _as_halves(
    x: torch.Tensor,
    up: torch.Tensor | None = None,
    n_present: torch.Tensor | None = None,
    clamp: tuple[float, float] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as float16, and what each is to be multiplied by; of the first ``n_present`` rows of gate ``x`` and ``up``,
    joined, if these are given."""
    import torch

    from . import expert_kernels

    half = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    scale = torch.empty(len(x), dtype=torch.float32, device=x.device)
    alpha, limit = clamp or (1.0, 0.0)
    expert_kernels.half_rows[(len(x),)](
        x, x if up is None else up, scale if n_present is None else n_present, half, scale, x.shape[1], alpha, limit,
        JOINED=up is not None, CLAMPED=clamp is not None, BLOCK=COLUMNS,
    )  # fmt: skip
    return half, scale


def _power(count: int) -> int:
    """The power of two not below ``count``."""
    return 1 << (count - 1).bit_length()


def _on(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    import torch

    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else contextlib.nullcontext()
