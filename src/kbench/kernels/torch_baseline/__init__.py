"""Plain torch: what kernels of our own are compared with, and what runs on a device that has none of them."""

from .cache import TorchCache, stored_tensor
from .device import ResidualNorm, TorchDevice, torch_device
from .device_step import DeviceStep
from .implementation import TorchImplementation, TorchWeights
from .paged_cache import PagedCache, PagePool, in_pages

__all__ = [
    "DeviceStep", "PagePool", "PagedCache", "ResidualNorm", "TorchCache", "TorchDevice", "TorchImplementation",
    "TorchWeights", "in_pages", "stored_tensor", "torch_device",
]  # fmt: skip
