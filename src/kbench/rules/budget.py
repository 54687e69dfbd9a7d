"""Whether the weights that a rule file puts on a device fit what there is for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbench.core import Device, Phase, format_bytes

from .finding import ERROR, Finding
from .flow import PlacedModule
from .schema import RuleSet


def budget_findings(rules: RuleSet, placed: Sequence[PlacedModule], budgets: Mapping[Device, int]) -> list[Finding]:
    """One finding for each device that is given more than its bytes, at the rule that gives it most.

    Weights that prefill wants on another device than decode are on both. Cache and workspace are not counted: they
    depend on how the model is run.
    """
    totals: dict[Device, dict[int, int]] = {}
    for module, rule, placement in placed:
        n_bytes = sum(tensor.n_bytes for tensor in module.tensors)
        for device in {placement.device(phase) for phase in Phase} if n_bytes else ():
            by_rule = totals.setdefault(device, {})
            number = rule.number if rule else 0
            by_rule[number] = by_rule.get(number, 0) + n_bytes
    by_number = {rule.number: rule for rule in rules.rules}
    findings = []
    for device, by_rule in sorted(totals.items()):
        total, budget = sum(by_rule.values()), budgets.get(device)
        if budget is None or total <= budget:
            continue
        number = max(by_rule, key=lambda number: (by_rule[number], -number))
        text = f"{format_bytes(total)} of weights on {device}, {format_bytes(total - budget)} over its budget"
        accepted = f"at most {format_bytes(budget)}, cache and workspace besides"
        share = format_bytes(by_rule[number])
        if number in by_number:
            todo = f"this rule puts {share} there: move some of its modules"
            part = "replace.kwargs.generate_device"
            findings.append(rules.finding("over-budget", ERROR, by_number[number], part, text, accepted, todo))
        else:
            todo = f"modules that match no rule are {share} of it: add a rule that moves them"
            findings.append(Finding("over-budget", ERROR, rules.path, 1, "rules", text, accepted, todo))
    return findings
