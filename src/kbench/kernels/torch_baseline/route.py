"""``reference.route`` in torch, where the logits are: no value leaves the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbench.core import Attribute

if TYPE_CHECKING:
    import torch


def route(
    logits: torch.Tensor, top_k: int, attrs: Mapping[str, Attribute], bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(ids int32, weights float32)`` of ``[tokens, top_k]``, best first; ties go to the lower index."""
    import torch

    scores = logits.softmax(dim=-1) if attrs.get("scoring", "softmax") == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias
    n_group, topk_group = int(attrs.get("n_group") or 1), int(attrs.get("topk_group") or 1)  # type: ignore[arg-type]
    if n_group > 1 and topk_group < n_group:
        groups = choice.reshape(len(choice), n_group, -1)
        best = groups.topk(1 if bias is None else min(2, groups.shape[-1]), dim=-1).values.sum(dim=-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, _top(best, topk_group), True)
        choice = groups.masked_fill(~kept[..., None], -math.inf).reshape(choice.shape)
    ids = _top(choice, top_k)
    weights = scores.gather(-1, ids)
    if attrs.get("norm_topk_prob"):
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)  # as DeepSeek guards an all-zero row
    return ids.int(), weights * float(attrs.get("routed_scaling") or 1.0)  # type: ignore[arg-type]


def _top(x: torch.Tensor, count: int) -> torch.Tensor:
    # topk breaks ties as it likes.
    return x.sort(dim=-1, descending=True, stable=True).indices[..., :count]
