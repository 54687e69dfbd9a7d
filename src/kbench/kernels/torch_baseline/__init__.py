"""Plain torch on the CPU: what kernels of our own are compared with."""

from .implementation import TorchImplementation

__all__ = ["TorchImplementation"]
