"""Kernels of other projects, where they are installed: for comparisons, never chosen by ``best`` or placed by rules."""

from .kt_kernel import KtExperts
from .registry import PEER_NAMES, comparable, peer_implementation

__all__ = ["PEER_NAMES", "KtExperts", "comparable", "peer_implementation"]
