"""Suites: lists of cells to measure, and the runner that measures them."""

from .cell import Cell
from .compare_engines import Workload, compare_engines, engine_plan, engine_side, engine_sides, rule_sides
from .compare_ops import check_names, compare_ops, contests, missing_peers
from .contest import Contest, Outcome
from .expand import expand, matches, select, select_rungs
from .generation import GenerationTiming, measure_generation
from .ladder import run_ladder, threads_of
from .rungs import Claim, Rung
from .runner import default_stopping, run_cells
from .schema import Suite, load_suite, parse_suite

__all__ = [
    "Cell", "Claim", "Contest", "GenerationTiming", "Outcome", "Rung", "Suite", "Workload", "check_names",
    "compare_engines", "compare_ops", "contests", "default_stopping", "engine_plan", "engine_side", "engine_sides",
    "expand", "load_suite", "matches", "measure_generation", "missing_peers", "parse_suite", "rule_sides",
    "run_cells", "run_ladder", "select", "select_rungs", "threads_of",
]  # fmt: skip
