"""The vocabulary that every package shares: frozen types, quant traits, sizes, errors, YAML with lines."""

from . import kernelfile
from .cgroup import CgroupLimits, read_cgroup
from .duration import parse_duration
from .errors import (
    CheckBroken,
    ConditionFailed,
    CorruptFile,
    Inconclusive,
    InvalidEnvironment,
    KbenchError,
    OverBudget,
    Unsupported,
    UserError,
    did_you_mean,
)
from .kv import KV_TYPES, check_kv, kv_bytes
from .op import INJECTED, OPS, OPTIONAL, PLANNED, Attribute, OpCall, Problem, Value, is_word
from .placement import AUTO, CPU, Assignment, Block, Device, GpuExperts, Phase, Placement, is_injected
from .processors import allowed_cpus, default_threads, physical_cores, thread_limit
from .quant import QUANTS, QUANTS_BY_ID, REMOVED_QUANT_IDS, QuantTraits, quant
from .shown import shown
from .size import format_bytes, parse_size
from .tree import Module, TensorInfo
from .wholefile import write_whole
from .work import Work, expected_experts, work
from .yamlfile import Lines, load_yaml, parse_yaml

__all__ = [
    "AUTO", "CPU", "INJECTED", "KV_TYPES", "OPS", "OPTIONAL", "PLANNED", "QUANTS", "QUANTS_BY_ID", "REMOVED_QUANT_IDS",
    "Assignment", "Attribute", "Block", "CgroupLimits", "CheckBroken", "ConditionFailed", "CorruptFile", "Device",
    "GpuExperts", "Inconclusive", "InvalidEnvironment", "KbenchError", "Lines", "Module", "OpCall", "OverBudget",
    "Phase", "Placement", "Problem", "QuantTraits", "TensorInfo", "Unsupported", "UserError", "Value", "Work",
    "allowed_cpus", "check_kv", "default_threads", "did_you_mean", "expected_experts", "format_bytes", "is_injected",
    "is_word", "kernelfile", "kv_bytes", "load_yaml", "parse_duration", "parse_size", "parse_yaml", "physical_cores",
    "quant", "read_cgroup", "shown", "thread_limit", "work", "write_whole",
]  # fmt: skip
