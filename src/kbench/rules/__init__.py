"""Rule files: KTransformers' YAML dialect and kbench's own form of it, read, matched, checked, explained, written."""

from .capture import Uncaptured
from .check import check
from .emit import emit, write_rules
from .explain import Row, explain, fold_rows, hidden_state, memory_by_device, weights_by_device
from .export import TOOLS, export
from .exported import Export, Serving
from .finding import Finding, Severity
from .gpu_experts import experts_text
from .match import assign, load_rules, match_modules
from .operators import ENTRY_POINT_GROUP, is_trusted
from .schema import Rule, RuleSet, parse_rules, read_rules
from .tensor_map import TensorPlace, TensorRow, tensor_map

check_rules = check

__all__ = [
    "ENTRY_POINT_GROUP", "TOOLS", "Export", "Finding", "Row", "Rule", "RuleSet", "Serving", "Severity", "TensorPlace",
    "TensorRow", "Uncaptured", "assign", "check", "check_rules", "emit", "experts_text", "explain", "export",
    "fold_rows", "hidden_state", "is_trusted", "load_rules", "match_modules", "memory_by_device", "parse_rules",
    "read_rules", "tensor_map", "weights_by_device", "write_rules",
]  # fmt: skip
