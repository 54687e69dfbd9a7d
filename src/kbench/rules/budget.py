"""Whether what a rule file puts on a device fits what there is for it: weights, and what running takes besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbench.core import Device, format_bytes

from .finding import ERROR, Finding
from .flow import PlacedModule
from .gpu_experts import shares
from .schema import RuleSet
from .transfer_map import layer_of

WEIGHTS, SWAPPED = "weights", "one layer swapped in"

# Device -> what takes memory there -> bytes.
Memory = Mapping[Device, Mapping[str, int]]


def device_memory(rules: RuleSet, placed: Sequence[PlacedModule], besides: Memory) -> dict[Device, dict[str, int]]:
    """What each device holds, ``besides`` its weights too.

    Weights that prefill wants on another device than decode are on both; with layer-wise prefill, of those one layer at
    a time.
    """
    found: dict[Device, dict[str, int]] = {}
    swapped: dict[Device, dict[str, int]] = {}
    parts = ((module, *part) for module, _, placement in placed for part in shares(module, placement))
    for module, decode, prefill, n_bytes in parts:
        if not n_bytes:
            continue
        found.setdefault(decode, {WEIGHTS: 0})[WEIGHTS] += n_bytes
        if prefill == decode:
            continue
        mine = found.setdefault(prefill, {WEIGHTS: 0})
        if rules.prefill_threshold:
            number = layer_of(module.name)
            group = module.name if number is None else str(number)
            layers = swapped.setdefault(prefill, {})
            layers[group] = layers.get(group, 0) + n_bytes
        else:
            mine[WEIGHTS] += n_bytes
    for device, layers in swapped.items():
        found[device][SWAPPED] = max(layers.values())
    for device, lines in besides.items():
        here = found.setdefault(device, {WEIGHTS: 0})
        here |= {name: n_bytes for name, n_bytes in lines.items() if name not in here}
    return dict(sorted(found.items()))


def budget_findings(
    rules: RuleSet, placed: Sequence[PlacedModule], budgets: Mapping[Device, int], besides: Memory
) -> list[Finding]:
    """One finding for each device that is given more than its bytes, at the rule that gives it most."""
    by_number = {rule.number: rule for rule in rules.rules}
    findings = []
    for device, lines in device_memory(rules, placed, besides).items():
        total, budget = sum(lines.values()), budgets.get(device)
        if budget is None or total <= budget:
            continue
        by_rule = _by_rule(placed, device)
        told = ", ".join(f"{name} {format_bytes(n_bytes)}" for name, n_bytes in lines.items() if n_bytes)
        text = f"{format_bytes(total)} on {device}, {format_bytes(total - budget)} over its budget: {told}"
        accepted = f"at most {format_bytes(budget)}" + ("" if len(lines) > 1 else ", cache and workspace besides")
        number = max(by_rule, key=lambda number: (by_rule[number], -number), default=0)
        share = format_bytes(by_rule.get(number, 0))
        if number in by_number:
            todo = f"this rule puts {share} of weights there: move some of its modules"
            part = "replace.kwargs.generate_device"
            findings.append(rules.finding("over-budget", ERROR, by_number[number], part, text, accepted, todo))
        else:
            todo = f"modules that match no rule are {share} of it: add a rule that moves them"
            findings.append(Finding("over-budget", ERROR, rules.path, 1, "rules", text, accepted, todo))
    return findings


def _by_rule(placed: Sequence[PlacedModule], device: Device) -> dict[int, int]:
    """Bytes of weights on ``device`` by the number of the rule that puts them there; 0: none does."""
    found: dict[int, int] = {}
    for module, rule, placement in placed:
        number = rule.number if rule else 0
        for decode, prefill, n_bytes in shares(module, placement):
            if n_bytes and device in (decode, prefill):
                found[number] = found.get(number, 0) + n_bytes
    return found
