"""Reports: what verbs found, as terminal tables."""

from .tables import bar, milliseconds, rate
from .tune_report import tune_report

__all__ = ["bar", "milliseconds", "rate", "tune_report"]
