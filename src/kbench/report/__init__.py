"""Reports: what verbs found, as terminal tables."""

from .ladder_table import print_ladder
from .tables import bar, milliseconds, rate
from .tune_report import print_tune_report

__all__ = ["bar", "milliseconds", "print_ladder", "print_tune_report", "rate"]
