"""Results: the record of a measurement, the store that keeps them, and what a tune came to."""

from .commit import current_commit
from .frame import frame
from .index import FileSummary, Index
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
from .rules_of_thumb import NOTICED, rules_of_thumb
from .shape import ListOf, MapOf, Maybe, Number, Object, Shape, Text, check_shape
from .store import Store, default_root
from .tune_result import SOLD_GIB, read_tune_result, tune_result_path, write_tune_result
from .verdict_row import BROKEN, RowStatus, VerdictRow, by_importance

__all__ = [
    "AA_SUITE", "BROKEN", "NOTICED", "SOLD_GIB", "CaseBlocks", "FileSummary", "Identity", "Index", "ListOf",
    "MapOf", "Maybe", "NoiseFloor", "Number", "Object", "Params", "Pruned", "Record", "RowStatus", "Shape", "Store",
    "Text", "VerdictRow", "blocks_of", "by_importance", "case_key", "check_shape", "compare_recorded",
    "current_commit", "default_root", "deviation_between_runs", "frame", "hosts_differ", "is_aa", "noise_floor",
    "old_places", "one_host", "problem_params", "prune", "read_records", "read_tune_result", "rules_of_thumb",
    "track_fields", "tune_result_path", "write_tune_result",
]  # fmt: skip
