"""Operators: what each op means, and the implementations that run it.

Importing this loads numpy; torch, gguf and the native module are loaded by what uses them. Names of the native module
(``Pool``, ``Program``, ...) are taken from it when they are asked for.
"""

import importlib
from typing import Any

from kbench.core import InvalidEnvironment

from .block_parameters import BlockParameter
from .cache import Cache, Stored, empty_rows, first_seen, slots
from .check import Verdict, check
from .example import Example, example, example_cache, example_weights
from .expert_subset import expert_subset, experts_of, pairs_here
from .implementation import YES, AnyArray, FloatArray, Implementation, Prepared, Spans, StepState, Support, WeightData
from .link import TorchLink, cuda_links
from .marlin import RoundingError, rounding_errors
from .page_table import PAGE_TOKENS, pages_for
from .peers import PEER_NAMES, comparable, peer_implementation
from .probes import NativeProbes, native_probes
from .random_weight import WEIGHT_TYPES, random_floats, random_weight
from .reference import dequantize
from .registry import (
    best,
    block_errors,
    candidates,
    implementation,
    implementations,
    ladder_implementations,
    left_in_file,
    on_tensors,
    packing,
    planned_on_gpu,
    runnable_on,
    support,
)
from .rope import rope_frequencies
from .spec import OpSpec, op_spec
from .support_table import DEQUANTISED, OWN, kernel_of, support_table
from .tolerance import accuracy_of
from .torch_baseline import (
    DeviceStep,
    PagedCache,
    PagePool,
    ResidualNorm,
    TorchCache,
    TorchDevice,
    stored_tensor,
    torch_device,
)  # fmt: skip
from .triton import TokenDraw, draws_on, interpreted
from .version import kernel_version

__all__ = [
    "DEQUANTISED", "OWN", "PAGE_TOKENS", "PEER_NAMES", "WEIGHT_TYPES", "YES", "AnyArray", "BlockParameter", "Cache",
    "DeviceStep", "Example", "FloatArray", "Implementation", "NativeProbes", "OpSpec", "PagePool", "PagedCache",
    "Prepared", "ResidualNorm", "RoundingError", "Spans", "StepState", "Stored", "Support", "TokenDraw", "TorchCache",
    "TorchDevice", "TorchLink", "Verdict", "WeightData", "accuracy_of", "best", "block_errors", "candidates", "check",
    "comparable", "cuda_links", "dequantize", "draws_on", "empty_rows", "example", "example_cache", "example_weights",
    "expert_subset", "experts_of", "first_seen", "implementation", "implementations", "interpreted", "kernel_of",
    "kernel_version", "ladder_implementations", "left_in_file", "native_probes", "on_tensors", "op_spec", "packing",
    "pages_for", "pairs_here", "peer_implementation", "planned_on_gpu", "random_floats", "random_weight",
    "rope_frequencies", "rounding_errors", "runnable_on", "slots", "stored_tensor", "support", "support_table",
    "torch_device",
]  # fmt: skip

# What ``kbench.kernels.cpu`` and the extension module behind it offer to builders of programs and to probes.
_NATIVE = frozenset((
    "Matrix", "Pool", "Program", "arithmetic_peak", "isa_tests", "isas", "matmul", "pack", "pool",
    "read_bandwidth", "read_rates",
))  # fmt: skip


def __getattr__(name: str) -> Any:
    """A name of the native module; InvalidEnvironment when the extension is not built."""
    if name not in _NATIVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(".cpu", __name__), name)
    except (ImportError, AttributeError) as error:
        raise InvalidEnvironment(
            f"the native extension is not built ({error})", where="kbench.kernels", todo="pip install ."
        ) from None
