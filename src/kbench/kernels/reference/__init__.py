"""The definition of every operation in numpy."""

from .experts import clamp_of, gated
from .functions import FUNCTIONS, cache_of, expansion, head_matrix, visible_positions
from .implementation import ReferenceImplementation
from .routing import SCORINGS, choice_scores, route, router_biases, router_logits
from .tensor import Tensor, dequantize

__all__ = [
    "FUNCTIONS", "SCORINGS", "ReferenceImplementation", "Tensor", "cache_of", "choice_scores", "clamp_of",
    "dequantize", "expansion", "gated", "head_matrix", "route", "router_biases", "router_logits",
    "visible_positions",
]  # fmt: skip
