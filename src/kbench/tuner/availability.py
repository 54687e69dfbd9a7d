"""Which implementations there are on a GPU, as data: what has none cannot be placed there, whatever it would save."""

from __future__ import annotations

from kbench.core import CPU, Device

# Operation -> why no GPU implementation runs it. Everything else has one, called GPU_IMPLEMENTATION.
NOT_ON_GPU = {
    "moe_experts": "no kernel for routed experts from GGUF blocks on CUDA",
}
GPU_IMPLEMENTATION = "triton"


def unavailable(op: str, device: Device) -> str:
    """Why ``op`` cannot be placed on ``device``; empty when it can."""
    return "" if device == CPU else NOT_ON_GPU.get(op, "")
