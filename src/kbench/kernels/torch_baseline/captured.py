"""Attention of one token whose position only the device knows: what a captured decode step runs.

Shapes are those of the whole cache, and slots that the token does not see are hidden. So it reads all of the cache at
every position: what a graph costs here is the time of a full context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbench.core import OpCall, Problem

from ..implementation import YES, StepState, Support
from ..reference import cache_of
from .device_step import DeviceStep

if TYPE_CHECKING:
    import torch

# Operations that read a token, its position or the cache: of one token they do so on the device.
_ONE_TOKEN = ("embedding", "rope", "attention", "mla_attention")
_HOST_LOOKS_AT = {
    "moe_experts": "the host looks at which experts were chosen, and waits for the device to know",
    "mla_decompressed": "the host decides by the position how many latents are multiplied out",
}


def torch_capturable(problem: Problem) -> Support:
    """Whether torch's calls for ``problem`` depend on nothing that the host looks at."""
    if problem.op in _HOST_LOOKS_AT:
        return Support(False, _HOST_LOOKS_AT[problem.op])
    if problem.op in _ONE_TOKEN and problem.integer("tokens") > 1:
        return Support(False, "the host looks at where several tokens belong")
    return YES


def attention(
    call: OpCall, w: Sequence[torch.Tensor], x: Sequence[torch.Tensor], state: StepState, step: DeviceStep
) -> list[Any]:
    """``attention`` of one token of sequence 0: ``[1, heads * d]``."""
    import torch

    heads, kv_heads, d, window = (call.problem.integer(name) for name in ("heads", "kv_heads", "d", "window"))
    scale = float(call.attrs.get("scale", 1 / math.sqrt(d)))  # type: ignore[arg-type]
    cache: Any = cache_of(call, state)
    hidden = step.hidden(cache.capacity, window)
    q, k, v = (t.reshape(1, -1, d).transpose(0, 1) for t in x)
    keys, values = cache.append_at(step.slot(cache.capacity), hidden, (k, v))
    if not w:
        attend = torch.nn.functional.scaled_dot_product_attention
        gqa = heads != kv_heads
        y = attend(q[None], keys[None], values[None], attn_mask=~hidden, scale=scale, enable_gqa=gqa)[0]
        return [y.transpose(0, 1).reshape(1, heads * d)]
    scores = (q.reshape(kv_heads, -1, d) @ keys.transpose(1, 2)).reshape(heads, 1, -1) * scale
    scores = torch.cat([scores.masked_fill(hidden, -math.inf), w[0].reshape(-1, 1, 1)], dim=-1)
    weights = scores.softmax(dim=-1)[..., :-1].reshape(kv_heads, -1, keys.shape[1])
    return [(weights @ values).reshape(1, heads * d)]


def mla_attention(call: OpCall, x: Sequence[torch.Tensor], state: StepState, step: DeviceStep) -> list[Any]:
    """``mla_attention`` of one token of sequence 0: ``[1, heads * kv_lora]``."""
    heads, kv_lora, rope_d, window = (call.problem.integer(name) for name in ("heads", "kv_lora", "rope", "window"))
    scale = float(call.attrs.get("scale", 1 / math.sqrt(kv_lora + rope_d)))  # type: ignore[arg-type]
    cache: Any = cache_of(call, state)
    hidden = step.hidden(cache.capacity, window)
    ((latent,),) = cache.append_at(step.slot(cache.capacity), hidden, (x[1][None],))
    scores = (x[0].reshape(heads, kv_lora + rope_d) @ latent.T) * scale
    y = scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ latent[:, :kv_lora]
    return [y.reshape(1, heads * kv_lora)]
