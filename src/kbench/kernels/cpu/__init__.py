"""Native CPU kernels: one implementation per instruction set, over the extension module ``_native``.

Importing this package loads numpy only. The extension is loaded by what uses it, and where it is not built that says
so (``NativeMissing``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .extension import NativeMissing, extension, pool
from .ladder import ladder_implementations
from .native import NativeImplementation, PackedWeights, implementations
from .one_call import OneCall

if TYPE_CHECKING:
    from ._native import Matrix as Matrix
    from ._native import Pool as Pool
    from ._native import Program as Program

__all__ = [
    "NativeImplementation", "NativeMissing", "OneCall", "PackedWeights", "extension", "implementations",
    "ladder_implementations", "pool",
]  # fmt: skip

_FROM_EXTENSION = (
    "Matrix", "Pool", "Program", "arithmetic_peak", "isa_tests", "isas", "matmul", "pack",
    "read_bandwidth", "read_rates",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """The extension's own names, loaded when first asked for."""
    if name in _FROM_EXTENSION:
        return getattr(extension(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
