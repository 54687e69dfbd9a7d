"""Output formats: each a function from a sheet of rows to the text of a file that another tool reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .bencher import bencher
from .github_benchmark import bigger_is_better, smaller_is_better
from .junit import junit
from .openmetrics import openmetrics
from .pytest_benchmark import pytest_benchmark
from .sheet import Sheet
from .step_summary import MAX_BYTES, step_summary
from .table_csv import table_csv

FORMATS: Mapping[str, Callable[[Sheet], str]] = {
    "markdown": step_summary,
    "junit": junit,
    "gha-smaller": smaller_is_better,
    "gha-bigger": bigger_is_better,
    "bencher": bencher,
    "pytest-benchmark": pytest_benchmark,
    "openmetrics": openmetrics,
    "csv": table_csv,
}

__all__ = ["FORMATS", "MAX_BYTES", "Sheet", "step_summary"]
