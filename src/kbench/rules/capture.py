"""Operators that keep a decode step from being one CUDA graph: what each costs, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kbench.core import AUTO, Assignment, Device

from .finding import INFO, Finding
from .schema import Rule, RuleSet

# From the host's request to a kernel's start, without a graph: engines pay 5 us (C++) to 16 us (eager torch).
_LAUNCH_MICROSECONDS = 5, 16


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """A call of a decode step that no graph can hold. ``n_calls``: all that are then queued one by one, on
    ``device``."""

    module: str
    op: str
    implementation: str
    device: Device
    reason: str
    n_calls: int


# Tells of an assignment which calls keep its decode step from being captured.
FindUncaptured = Callable[[Assignment], Sequence[Uncaptured]]


def capture_findings(
    rules: RuleSet, assignment: Assignment, rule_of: Mapping[str, Rule | None], find: FindUncaptured | None
) -> list[Finding]:
    """One finding for each rule, operation and reason."""
    if find is None:
        return []
    groups: dict[tuple[int, str, str, str], list[Uncaptured]] = {}
    for one in find(assignment):
        rule = rule_of.get(one.module)
        groups.setdefault((rule.number if rule else 0, one.op, one.implementation, one.reason), []).append(one)
    findings = []
    for ones in groups.values():
        first, rule = ones[0], rule_of.get(ones[0].module)
        more = f" and {len(ones) - 1} more" if len(ones) > 1 else ""
        low, high = (first.n_calls * launch / 1000 for launch in _LAUNCH_MICROSECONDS)
        found = (
            f"{first.implementation} {first.op} ({first.module}{more}) cannot be in a CUDA graph: {first.reason}. "
            f"So the {first.n_calls} calls of a token that are a GPU's are queued one by one, "
            f"{low:.1f} to {high:.1f} ms (modelled)"
        )
        todo = _todo(first)
        if rule is None:
            findings.append(Finding("uncaptured", INFO, rules.path, 1, "decode on a GPU", found, "", todo))
        else:
            findings.append(rules.finding("uncaptured", INFO, rule, "replace.kwargs.generate_op", found, "", todo))
    return findings


def _todo(one: Uncaptured) -> str:
    if one.op == "expert_map":
        return "generate_device of the router: a GPU, where a graph holds it"
    if one.device.kind == "cpu":
        return f"generate_op: {AUTO}, which takes native kernels"
    if one.op == "moe_experts":
        return "generate_op: triton, or generate_device: cpu, whose experts run beside the graph and are awaited in it"
    return f"generate_op: {AUTO}, or generate_device: cpu"
