"""Suites: lists of cells to measure, and the runner that measures them."""

from .cell import Cell
from .compare_engines import Workload, compare_engines, engine_plan, engine_side, engine_sides, rule_sides
from .compare_ops import check_names, compare_ops, contests, missing_peers
from .compare_revisions import commits_of, compare_revisions, compare_with_itself, revision_engines, side_names
from .contest import Contest, Outcome
from .expand import expand, matches, select, select_rungs
from .generation import GenerationTiming, measure_generation
from .ladder import run_ladder, threads_of
from .record_blocks import N_BLOCKS, Recorder
from .revision import BuildFailed, Built, Revision, build, find_revision, installed, repository_of
from .rungs import Claim, Rung
from .runner import default_stopping, run_cells
from .schema import Suite, load_suite, parse_suite

__all__ = [
    "N_BLOCKS", "BuildFailed", "Built", "Cell", "Claim", "Contest", "GenerationTiming", "Outcome", "Recorder",
    "Revision", "Rung", "Suite", "Workload", "build", "check_names", "commits_of", "compare_engines", "compare_ops",
    "compare_revisions", "compare_with_itself", "contests", "default_stopping", "engine_plan", "engine_side",
    "engine_sides", "expand", "find_revision", "installed", "load_suite", "matches", "measure_generation",
    "missing_peers", "parse_suite", "repository_of", "revision_engines", "rule_sides", "run_cells", "run_ladder",
    "select", "select_rungs", "side_names", "threads_of",
]  # fmt: skip
