"""Suites: lists of cells to measure, and the runner that measures them."""

from .cell import Cell
from .expand import expand, matches, select, select_rungs
from .generation import GenerationTiming, measure_generation
from .ladder import run_ladder, threads_of
from .rungs import Claim, Rung
from .runner import default_stopping, run_cells
from .schema import Suite, load_suite, parse_suite

__all__ = [
    "Cell", "Claim", "GenerationTiming", "Rung", "Suite", "default_stopping", "expand", "load_suite", "matches",
    "measure_generation", "parse_suite", "run_cells", "run_ladder", "select", "select_rungs", "threads_of",
]  # fmt: skip
