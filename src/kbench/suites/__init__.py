"""Suites: lists of cells to measure, and the runner that measures them."""

from .cell import Cell
from .expand import expand, matches, select
from .generation import GenerationTiming, measure_generation
from .runner import default_stopping, run_cells
from .schema import Suite, load_suite, parse_suite

__all__ = [
    "Cell", "GenerationTiming", "Suite", "default_stopping", "expand", "load_suite", "matches", "measure_generation",
    "parse_suite", "run_cells", "select",
]  # fmt: skip
