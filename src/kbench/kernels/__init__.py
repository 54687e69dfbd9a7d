"""Operators: what each op means, and the implementations that run it.

Importing this loads numpy; torch, gguf and the native module are loaded by what uses them.
"""

from .check import Verdict, check
from .example import Example, example
from .implementation import YES, AnyArray, Cache, FloatArray, Implementation, Prepared, StepState, Support, WeightData
from .probes import NativeProbes, native_probes
from .random_weight import WEIGHT_TYPES, random_floats, random_weight
from .reference import dequantize
from .registry import best, candidates, implementation, implementations, support
from .rope import rope_frequencies
from .spec import OpSpec, op_spec
from .tolerance import accuracy_of

__all__ = [
    "WEIGHT_TYPES", "YES", "AnyArray", "Cache", "Example", "FloatArray", "Implementation", "NativeProbes", "OpSpec",
    "Prepared", "StepState", "Support", "Verdict", "WeightData", "accuracy_of", "best", "candidates", "check",
    "dequantize", "example", "implementation", "implementations", "native_probes", "op_spec", "random_floats",
    "random_weight", "rope_frequencies", "support",
]  # fmt: skip
