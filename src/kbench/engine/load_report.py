"""What loading a model did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbench.core import Assignment
from kbench.kernels import RoundingError


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Bytes of the file read, bytes that weights take now, seconds; in a rehearsal of rules, the implementations that
    only the real device has, with what stands in for each; where each module was asked to run; which tensors were
    rounded anew, and how far they are off now; by the devices of two hosts, what carries values from one to the other,
    and why not NCCL."""

    file_bytes: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    seconds: float
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    assignment: Assignment = field(default_factory=dict)
    rounded: tuple[RoundingError, ...] = ()
    carriers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
