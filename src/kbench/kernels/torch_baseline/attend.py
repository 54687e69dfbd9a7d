"""Causal attention by torch's scaled_dot_product_attention, so that it takes a flash kernel wherever it has one.

CUDA's flash kernels need half precision, one width of keys and values, and no mask that is a tensor::

    keys     queries                     how the mask is said
    cached   all of a prompt             is_causal
    cached   a later chunk of one        causal_lower_right: the same kernel, aligned to the last key
    cached   one                         none
    through a window that hides some     a tensor: no flash kernel
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    position: int,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """``q [heads, tokens, d]``, the first at ``position``, over ``k [kv_heads, cached, d]``, ``v [kv_heads, cached,
    dv]``: ``[heads, tokens, dv]`` float32, computed in the type of ``k``."""
    import torch

    if sinks is not None:
        # No call of torch's knows them: one more column of scores, whose value is zero.
        groups = q.float().reshape(len(k), -1, q.shape[-1])
        scores = (groups @ k.float().transpose(1, 2)).reshape(len(q), q.shape[1], -1) * scale
        scores.masked_fill_(hidden(q.shape[1], k.shape[1], position, q.device, window), -math.inf)
        scores = torch.cat([scores, sinks.reshape(-1, 1, 1).expand(-1, q.shape[1], -1)], dim=-1)
        weights = scores.softmax(dim=-1)[..., :-1]
        return (weights.reshape(*groups.shape[:2], -1) @ v.float()).reshape(*q.shape[:2], -1)
    width = v.shape[-1]
    if k.is_cuda and k.dtype != torch.float32 and width < k.shape[-1]:
        v = torch.nn.functional.pad(v, (0, k.shape[-1] - width))
    mask = _mask(q.shape[1], k.shape[1], position, q.device, window)
    gqa = len(q) != len(k)
    y = torch.nn.functional.scaled_dot_product_attention(
        q[None].to(k.dtype), k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=gqa
    )
    return y[0, ..., :width].float()


def _mask(tokens: int, cached: int, position: int, device: torch.device, window: int) -> Any:
    from torch.nn.attention.bias import causal_lower_right

    if window and cached > window:
        return ~hidden(tokens, cached, position, device, window)
    return causal_lower_right(tokens, cached) if tokens > 1 else None


def hidden(tokens: int, cached: int, position: int, device: torch.device, window: int = 0) -> torch.Tensor:
    """True where a key lies in a query's future, or before its window: ``[tokens, cached]``."""
    import torch

    keys = torch.arange(cached, device=device)[None]
    queries = position + torch.arange(tokens, device=device)[:, None]
    future = keys > queries
    return future | (keys <= queries - window) if window else future
