"""``gpu_experts``: the routed experts of a layer that lie on another device than the layer's others.

KTransformers' server calls them so (``--kt-num-gpu-experts``, ``gpu_experts_mask``): experts of layers that are
otherwise the CPU's. A rule lists them by number, as they differ from layer to layer: ``gpu_experts: [0-15, 31]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kbench.core import Device, GpuExperts, Module, Placement

from .finding import ERROR, Finding
from .fold import ranges
from .schema import Rule, RuleSet

ACCEPTED = "a list of numbers and ranges, e.g. [0-15, 31]"
# More experts than any layer has: a range is never written out further.
_MAX_EXPERT = 1 << 16

_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})")


def read_experts(value: Any) -> tuple[int, ...]:
    """The experts that a rule lists, rising.

    Raises:
        ValueError: with what is wrong.
    """
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    found: set[int] = set()
    for item in value:
        first, last = _bounds(item)
        if not 0 <= first <= last < _MAX_EXPERT:
            raise ValueError(f"{item!r} is no range of experts")
        again = found & set(range(first, last + 1))
        if again:
            raise ValueError(f"expert {min(again)} is there twice")
        found |= set(range(first, last + 1))
    if not found:
        raise ValueError("an empty list")
    return tuple(sorted(found))


def _bounds(item: Any) -> tuple[int, int]:
    if isinstance(item, int) and not isinstance(item, bool):
        return item, item
    match = _RANGE.fullmatch(item) if isinstance(item, str) else None
    if match is None:
        raise ValueError(f"{item!r} is neither a number nor a range")
    return int(match[1]), int(match[2])


def experts_text(experts: Iterable[int]) -> str:
    """As ``read_experts`` reads them: ``[0-15, 31]``."""
    return f"[{ranges(experts).replace(',', ', ')}]"


def n_experts_of(module: Module) -> int:
    """Experts whose matrices the module has in one stack; 0: it is no layer's experts."""
    return next((t.shape[-1] for t in module.tensors if t.kind == "routed experts" and len(t.shape) == 3), 0)


def part_bytes(module: Module, placement: Placement) -> int:
    """Of the module's tensors, what lies on the device of ``gpu_experts``."""
    part, n_experts = placement.gpu_experts, n_experts_of(module)
    if part is None or not n_experts:
        return 0
    return sum(tensor.n_bytes for tensor in module.tensors) // n_experts * len(part.experts)


def shares(module: Module, placement: Placement) -> Iterator[tuple[Device, Device, int]]:
    """Where the module's weights lie: a device in decode, one in prefill, and bytes."""
    n_bytes, part = sum(tensor.n_bytes for tensor in module.tensors), part_bytes(module, placement)
    yield placement.generate_device, placement.prefill_device, n_bytes - part
    if part and placement.gpu_experts is not None:
        yield placement.gpu_experts.device, placement.gpu_experts.device, part


def part_findings(rules: RuleSet, placed: Sequence[tuple[Module, Rule | None, Placement]]) -> list[Finding]:
    """Experts that a layer has not, or that are all it has; one finding a rule."""
    findings: dict[int, Finding] = {}
    for module, rule, placement in placed:
        part, n_experts = placement.gpu_experts, n_experts_of(module)
        if part is None or rule is None or not n_experts:
            continue
        wrong = part.why_not(n_experts)
        if wrong:
            todo = f"set generate_device to {part.device}" if len(part.experts) == n_experts else ""
            finding = rules.finding(
                "gpu-experts", ERROR, rule, "replace.kwargs.gpu_experts", f"{wrong} ({module.name})",
                f"some of 0 to {n_experts - 1}, and not all", todo,
            )  # fmt: skip
            findings.setdefault(rule.number, finding)
    return list(findings.values())


def part_of(experts: tuple[int, ...] | None, device: Device | None, op: str) -> GpuExperts | None:
    """What a rule's three kwargs come to; without a device it is the first GPU."""
    return None if experts is None else GpuExperts(experts, device or Device("cuda"), op)
