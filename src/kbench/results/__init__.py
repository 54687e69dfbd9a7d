"""Results: the record of a measurement and the store that keeps them."""

from .commit import current_commit
from .record import Record, case_key, problem_params
from .store import Store, default_root

__all__ = ["Record", "Store", "case_key", "current_commit", "default_root", "problem_params"]
