"""Reports: what verbs found, as terminal tables, as a page, as charts."""

from .claims_table import print_claims
from .compare_table import print_comparison
from .engine_table import print_engine_cases
from .files import write_charts, write_page
from .ladder_table import print_ladder
from .page import html_page
from .tables import bar, milliseconds, rate
from .tune_report import print_tune_report

__all__ = [
    "bar", "html_page", "milliseconds", "print_claims", "print_comparison", "print_engine_cases", "print_ladder",
    "print_tune_report", "rate", "write_charts", "write_page",
]  # fmt: skip
