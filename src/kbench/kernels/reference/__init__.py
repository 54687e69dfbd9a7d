"""The definition of every operation in numpy."""

from .functions import FUNCTIONS, cache_of, expansion, head_matrix
from .implementation import ReferenceImplementation
from .routing import SCORINGS, choice_scores, route
from .tensor import Tensor, dequantize

__all__ = [
    "FUNCTIONS", "SCORINGS", "ReferenceImplementation", "Tensor", "cache_of", "choice_scores",
    "dequantize", "expansion", "head_matrix", "route",
]  # fmt: skip
