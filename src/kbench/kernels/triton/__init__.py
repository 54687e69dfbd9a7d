"""Triton kernels for GPUs. Importing this loads neither triton nor torch."""

from .device import TritonDevice, TritonImplementation, interpreted, triton_device
from .token_draw import TokenDraw, draws_on

__all__ = ["TokenDraw", "TritonDevice", "TritonImplementation", "draws_on", "interpreted", "triton_device"]
