"""Plain torch in float32 on every CPU.

Where the CPU has bfloat16 torch multiplies in it, and its roundoff (2^-9) would hide what many tests look for: values
that went to the wrong place. What holds products in bfloat16 to their own bounds is ``kernels/test_torch_baseline.py``.
"""

from __future__ import annotations

from kbench.kernels import TorchDevice, implementation, on_tensors
from kbench.kernels.torch_baseline import TorchImplementation


def torch_items() -> list[TorchImplementation]:
    """Everything of this process that multiplies by torch on the CPU, or stands for a GPU there."""
    plain = implementation("torch")
    assert isinstance(plain, TorchImplementation)
    devices = [on_tensors(name, "cpu") for name in ("torch", "triton", "marlin")]
    return [plain, *(device for device in devices if isinstance(device, TorchDevice))]


def in_float32() -> None:
    """For the rest of this process."""
    for item in torch_items():
        item.dtype = "f32"
