"""Operators: what each op means, and the implementations that run it.

Importing this loads numpy; torch and the native module are loaded by the implementations that use them.
"""

from .implementation import YES, AnyArray, Cache, FloatArray, Implementation, Prepared, StepState, Support, WeightData
from .rope import rope_frequencies

__all__ = [
    "YES", "AnyArray", "Cache", "FloatArray", "Implementation", "Prepared", "StepState", "Support", "WeightData",
    "rope_frequencies",
]  # fmt: skip
