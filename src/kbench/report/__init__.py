"""Reports: what verbs found, as terminal tables."""

from .tables import bar, milliseconds, rate
from .tune_report import print_tune_report

__all__ = ["bar", "milliseconds", "print_tune_report", "rate"]
