"""Suites: lists of cells to measure, and the runner that measures them."""

from .cell import Cell
from .claim_files import ClaimFiles
from .claim_list import CHECKS, ClaimCheck
from .claims import ClaimBench, run_claims
from .compare_engines import Workload, compare_engines, engine_plan, engine_side, engine_sides, rule_sides
from .compare_ops import check_names, comparable_names, compare_ops, contests, missing_peers, on_gpu
from .compare_revisions import commits_of, compare_revisions, compare_with_itself, revision_engines, side_names
from .contest import Contest, Outcome
from .engine_bench import run_engine_cases
from .engine_case import EngineCase
from .expand import engine_cases, expand, matches, select, select_any, select_claims, select_rungs
from .in_place import Row, in_place_cells, in_run, runs_in_place
from .ladder import run_ladder, threads_of
from .perplexity import WINDOW, Divergence, Perplexity, perplexity, perplexity_fields, perplexity_record
from .record_blocks import N_BLOCKS, Recorder
from .revision import BuildFailed, Built, Revision, build, find_revision, installed, repository_of
from .routing import SEED, random_tokens, record_routing, text_name
from .rungs import Claim, Rung
from .runner import default_stopping, known_records, records_of, run_cells, stands_for, version_of
from .schema import Suite, load_suite, parse_suite
from .text import english

__all__ = [
    "CHECKS", "N_BLOCKS", "SEED", "WINDOW", "BuildFailed", "Built", "Cell", "Claim", "ClaimBench", "ClaimCheck",
    "ClaimFiles", "Contest", "Divergence", "EngineCase", "Outcome", "Perplexity", "Recorder", "Revision", "Row", "Rung",
    "Suite", "Workload", "build", "check_names", "commits_of", "comparable_names", "compare_engines", "compare_ops",
    "compare_revisions", "compare_with_itself", "contests", "default_stopping", "engine_cases", "engine_plan",
    "engine_side", "engine_sides", "english", "expand", "find_revision", "in_place_cells", "in_run", "installed",
    "known_records", "load_suite", "matches", "missing_peers", "on_gpu", "parse_suite", "perplexity",
    "perplexity_fields", "perplexity_record", "random_tokens", "record_routing", "records_of", "repository_of",
    "revision_engines", "rule_sides", "run_cells", "run_claims", "run_engine_cases", "run_ladder", "runs_in_place",
    "select", "select_any", "select_claims", "select_rungs", "side_names", "stands_for", "text_name", "threads_of",
    "version_of",
]  # fmt: skip
