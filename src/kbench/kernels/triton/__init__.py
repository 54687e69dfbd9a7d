"""Triton kernels for GPUs. Importing this loads neither triton nor torch."""

from .device import TritonDevice, TritonImplementation, interpreted, triton_device

__all__ = ["TritonDevice", "TritonImplementation", "interpreted", "triton_device"]
