"""Where the hidden state travels: devices that change between layers, and ``transfer_map``.

KTransformers moves the hidden state only where ``transfer_map`` says so, and fails at the first token where a module
sits elsewhere. kbench inserts the transfers itself, so for its own form a break is only worth knowing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kbench.core import Device, Module, Placement

from .finding import ERROR, INFO, WARNING, Finding, Severity
from .schema import Rule, RuleSet

PlacedModule = tuple[Module, "Rule | None", Placement]

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


def flow_findings(rules: RuleSet, placed: Sequence[PlacedModule], transfer_map: Mapping[int, Device]) -> list[Finding]:
    """Findings about ``transfer_map`` and about modules that are not where the hidden state is."""
    layers: dict[int, list[PlacedModule]] = {}
    rest: list[PlacedModule] = []
    for one in placed:
        match = _LAYER.search(one[0].name)
        if not one[0].tensors:
            continue
        if match is not None:
            layers.setdefault(int(match[1]), []).append(one)
        elif one[0].name.rpartition(".")[2] in ("norm", "lm_head"):
            rest.append(one)
    findings = _bad_keys(rules, transfer_map, layers)
    if not layers:
        return findings
    if not rules.is_kt and not transfer_map:
        return findings + _breaks(rules, layers)
    return findings + _strays(rules, layers, rest, transfer_map)


def _map_rule(rules: RuleSet) -> Rule | None:
    return next((rule for rule in rules.rules if "transfer_map" in (rule.kwargs or {})), None)


def _bad_keys(
    rules: RuleSet, transfer_map: Mapping[int, Device], layers: Mapping[int, list[PlacedModule]]
) -> list[Finding]:
    rule = _map_rule(rules)
    if rule is None or not layers:
        return []
    accepted = f"0 to {max(layers)}"
    return [
        rules.finding(
            "transfer-map", ERROR, rule, f"replace.kwargs.transfer_map.{layer}", f"no layer {layer}", accepted
        )
        for layer in transfer_map
        if layer not in layers
    ]


def home(modules: Sequence[PlacedModule]) -> Device:
    """The device that most of a layer's modules are on; a layer with any on a GPU has its home there."""
    devices = [placement.generate_device for _, _, placement in modules]
    devices = [device for device in devices if device.kind != "cpu"] or devices
    return max(sorted(set(devices)), key=devices.count)


def _breaks(rules: RuleSet, layers: Mapping[int, list[PlacedModule]]) -> list[Finding]:
    found = []
    homes = [(layer, home(layers[layer])) for layer in sorted(layers)]
    for (_, before), (layer, after) in pairwise(homes):
        if before != after:
            rule = next((rule for _, rule, _ in layers[layer] if rule is not None), None)
            text = f"the hidden state moves from {before} to {after} at layer {layer}"
            todo = "kbench inserts the transfer"
            line = rule.line if rule else 1
            found.append(Finding("device-break", INFO, rules.path, line, "device flow", text, "", todo))
    return found


def _strays(
    rules: RuleSet,
    layers: Mapping[int, list[PlacedModule]],
    rest: Sequence[PlacedModule],
    transfer_map: Mapping[int, Device],
) -> list[Finding]:
    """Modules that are not on the device that the hidden state is on, by rule and device."""
    current = home(layers[min(layers)])
    wrong: dict[tuple[int, Device, Device], list[str]] = {}
    by_number = {rule.number: rule for rule in rules.rules}
    for layer in sorted(layers):
        current = transfer_map.get(layer, current)
        _collect(layers[layer], current, wrong)
    _collect(rest, current, wrong)
    severity: Severity = ERROR if rules.is_kt else WARNING
    findings = []
    for (number, device, wanted), names in wrong.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        text = f"{names[0]}{more} on {device}, but the hidden state is on {wanted} there"
        numbers = [int(match[1]) for name in names if (match := _LAYER.search(name))]
        todo = f"move them to {wanted}"
        if device.kind == "cpu":
            todo += f", or use an operator with out_device: {wanted}"
        elif numbers and min(numbers) in transfer_map:
            todo += f", or take {min(numbers)} out of transfer_map"
        elif numbers:
            todo += f", or add {{{min(numbers)}: {device}}} to transfer_map of the Model rule"
        if number in by_number:
            part = "replace.kwargs.generate_device"
            findings.append(rules.finding("device-flow", severity, by_number[number], part, text, "", todo))
        else:
            text, todo = f"no rule for {text}", todo.replace("move them", "add a rule that moves them", 1)
            findings.append(Finding("device-flow", severity, rules.path, 1, "rules", text, "", todo))
    return findings


def _collect(
    modules: Sequence[PlacedModule], current: Device, wrong: dict[tuple[int, Device, Device], list[str]]
) -> None:
    for module, rule, placement in modules:
        device = placement.generate_device
        # An operator on the CPU takes its input from anywhere and leaves its output on out_device.
        if device == current or (device.kind == "cpu" and placement.out_device == current):
            continue
        wrong.setdefault((rule.number if rule else 0, device, current), []).append(module.name)
