"""Weight-only 4-bit products for GPUs, Marlin's class. Importing this loads neither triton nor torch."""

from ..triton.int4_rows import RoundingError
from .device import MarlinDevice, MarlinImplementation, marlin_device, rounding_errors
from .parameters import marlin_packing

__all__ = [
    "MarlinDevice",
    "MarlinImplementation",
    "RoundingError",
    "marlin_device",
    "marlin_packing",
    "rounding_errors",
]
