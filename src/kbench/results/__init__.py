"""Results: the record of a measurement, the store that keeps them, and what a tune came to."""

from .commit import current_commit
from .record import Record, case_key, problem_params
from .store import Store, default_root
from .tune_result import SOLD_GIB, read_tune_result, tune_result_path, write_tune_result
from .verdict_row import BROKEN, RowStatus, VerdictRow, by_importance

__all__ = [
    "BROKEN", "SOLD_GIB", "Record", "RowStatus", "Store", "VerdictRow", "by_importance", "case_key", "current_commit",
    "default_root", "problem_params", "read_tune_result", "tune_result_path", "write_tune_result",
]  # fmt: skip
