"""Results: the record of a measurement, the store that keeps them, their history, and what a tune came to."""

from .branch import branch_commits, usual_branch
from .commit import current_commit
from .frame import frame
from .history import Histories, Point, Series, histories
from .imports import import_records, read_foreign
from .index import FileSummary, Index
from .judged import judged_histories
from .marks import KINDS as MARK_KINDS
from .marks import NAME as MARKS_NAME
from .marks import Mark, add_mark, load_marks
from .noise_floor import AA_SUITE, NoiseFloor, is_aa, noise_floor
from .prune import Pruned, old_places, prune
from .record import Params, Record, case_key, problem_params
from .recorded import (
    CaseBlocks,
    Identity,
    blocks_of,
    compare_recorded,
    deviation_between_runs,
    hosts_differ,
    one_host,
    read_records,
    track_fields,
)
from .routing import Routing, read_routing, routing_path, write_routing
from .rules_of_thumb import NOTICED, rules_of_thumb, with_rules_of_thumb
from .shape import ListOf, MapOf, Maybe, Number, Object, Shape, Text, check_shape
from .store import Store, default_root
from .tune_result import (
    IN_TURNS,
    NOW,
    OF_THE_PLAN,
    SOLD_GIB,
    STORED,
    read_tune_result,
    tune_result_path,
    write_tune_result,
)
from .verdict_row import BROKEN, RowStatus, VerdictRow, by_importance

__all__ = [
    "AA_SUITE", "BROKEN", "IN_TURNS", "MARKS_NAME", "MARK_KINDS", "NOTICED", "NOW", "OF_THE_PLAN", "SOLD_GIB", "STORED",
    "CaseBlocks", "FileSummary", "Histories", "Identity", "Index", "ListOf", "MapOf", "Mark", "Maybe", "NoiseFloor",
    "Number", "Object", "Params", "Point", "Pruned", "Record", "Routing", "RowStatus", "Series", "Shape", "Store",
    "Text", "VerdictRow", "add_mark", "blocks_of", "branch_commits", "by_importance", "case_key", "check_shape",
    "compare_recorded", "current_commit", "default_root", "deviation_between_runs", "frame", "histories",
    "hosts_differ", "import_records", "is_aa", "judged_histories", "load_marks", "noise_floor", "old_places",
    "one_host", "problem_params", "prune", "read_foreign", "read_records", "read_routing", "read_tune_result",
    "routing_path", "rules_of_thumb", "track_fields", "tune_result_path", "usual_branch", "with_rules_of_thumb",
    "write_routing", "write_tune_result",
]  # fmt: skip
