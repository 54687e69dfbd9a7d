"""What measuring on a GPU needs, said where it is not there."""

from __future__ import annotations

from kbench.core import Device

# Where single operations are timed.
GPU = Device("cuda", 0)
# What no GPU's last-level cache holds: the largest have some 128 MB (B200), and twice that is cold.
GPU_COLD_BYTES = 256 << 20

MARLIN, TRITON = "marlin", "triton"
# Kernels that only a GPU has: names that suites may use on any machine.
GPU_KERNELS = (MARLIN, TRITON)
NEEDS = {
    MARLIN: "a CUDA GPU of compute capability 8.0 or more and a CUDA build of torch, which brings triton (pip install "
    "torch); Marlin's own kernels are used where vllm or sgl-kernel is installed",
    TRITON: "a CUDA GPU and a CUDA build of torch, which brings triton (pip install torch)",
}


def has_gpu() -> bool:
    """Whether torch finds a CUDA device."""
    import torch

    return torch.cuda.is_available()


def why_not(device: Device, implementation: str) -> str:
    """Why ``implementation`` is not measured on ``device``."""
    if not has_gpu():
        return f"no CUDA GPU is here: {implementation} needs {NEEDS.get(implementation, 'one')}"
    return f"single operations are timed on {GPU}, not on {device}: CUDA_VISIBLE_DEVICES says which GPU that is"
