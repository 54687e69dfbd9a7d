"""Reports: what verbs found, as terminal tables, as pages, as charts, as files for other tools."""

from .claims_table import print_claims
from .compare_page import compare_page
from .compare_table import print_comparison
from .engine_table import print_engine_cases
from .files import write_charts, write_page
from .formats import FORMATS, MAX_BYTES, Sheet, step_summary
from .history_page import history_page
from .history_table import history_rows, print_history
from .ladder_table import print_ladder
from .page import html_page
from .search_table import print_search
from .tables import bar, milliseconds, rate
from .tune_report import print_tune_report

__all__ = [
    "FORMATS", "MAX_BYTES", "Sheet", "bar", "compare_page", "history_page", "history_rows", "html_page",
    "milliseconds", "print_claims", "print_comparison", "print_engine_cases", "print_history", "print_ladder",
    "print_search", "print_tune_report", "rate", "step_summary", "write_charts", "write_page",
]  # fmt: skip
