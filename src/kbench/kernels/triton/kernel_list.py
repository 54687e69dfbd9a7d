"""All kernels in all configurations that may run: what is compiled for every chip before anybody can choose it."""

from __future__ import annotations

from . import attention, block_tensor, expert_kept, int4_product, plane_matrix, sampling, small_ops
from .kept_kernel import KeptKernel

# Files that launch kernels, or say what is launched. Each has ``kept_kernels()``.
_LAUNCHERS = (plane_matrix, int4_product, expert_kept, block_tensor, attention, small_ops, sampling)


def kept_kernels() -> tuple[KeptKernel, ...]:
    """Every kernel that is launched, those of one function together."""
    found = [kernel for launcher in _LAUNCHERS for kernel in launcher.kept_kernels()]
    first = {kernel.function: i for i, kernel in reversed([*enumerate(found)])}
    return tuple(sorted(found, key=lambda kernel: first[kernel.function]))
