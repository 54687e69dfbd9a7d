"""Where the hidden state travels: devices that change between layers, and ``transfer_map``.

KTransformers moves the hidden state only where ``transfer_map`` says so, and fails at the first token where a module
sits elsewhere. kbench inserts the transfers itself, so for its own form a break is only worth knowing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from kbench.core import Device, Module, Placement

from .finding import ERROR, INFO, WARNING, Finding, Severity
from .fold import number_regex, ranges
from .schema import Rule, RuleSet
from .transfer_map import TransferMap, layer_of

PlacedModule = tuple[Module, "Rule | None", Placement]


def flow_findings(
    rules: RuleSet, placed: Sequence[PlacedModule], transfer_map: TransferMap, default: Placement
) -> list[Finding]:
    """Findings about ``transfer_map`` and about modules that are not where the hidden state is."""
    layers: dict[int, list[PlacedModule]] = {}
    rest: list[PlacedModule] = []
    residuals: dict[int, PlacedModule] = {}
    for one in placed:
        name, layer = one[0].name, layer_of(one[0].name)
        if "DecoderLayer" in one[0].classes and layer is not None:
            residuals[layer] = one
        if not one[0].tensors:
            continue
        if layer is not None:
            layers.setdefault(layer, []).append(one)
        elif name.rpartition(".")[2] in ("norm", "lm_head"):
            rest.append(one)
    findings = _bad_keys(rules, layers)
    if not layers:
        return findings
    findings += _residuals(rules, layers, residuals)
    if not rules.is_kt and not transfer_map.devices:
        return findings + _breaks(rules, residuals)
    return findings + _strays(rules, layers, rest, transfer_map, default)


def _bad_keys(rules: RuleSet, layers: Mapping[int, list[PlacedModule]]) -> list[Finding]:
    """Layers of a ``transfer_map`` that the model has not."""
    if not layers:
        return []
    findings = []
    for rule in rules.rules:
        given = (rule.kwargs or {}).get("transfer_map")
        for layer in given if isinstance(given, Mapping) else ():
            if isinstance(layer, int) and layer >= 0 and layer not in layers:
                part = f"replace.kwargs.transfer_map.{layer}"
                accepted = f"0 to {max(layers)}"
                findings.append(rules.finding("transfer-map", ERROR, rule, part, f"no layer {layer}", accepted))
    return findings


def home(modules: Sequence[PlacedModule]) -> Device:
    """The device that most of a layer's modules are on; a layer with any on a GPU has its home there."""
    devices = [placement.generate_device for _, _, placement in modules]
    devices = [device for device in devices if device.kind != "cpu"] or devices
    return max(sorted(set(devices)), key=devices.count)


def _breaks(rules: RuleSet, residuals: Mapping[int, PlacedModule]) -> list[Finding]:
    """Layers from which on the residual is added on another device."""
    found = []
    for (_, before), (layer, after) in pairwise((layer, residuals[layer]) for layer in sorted(residuals)):
        devices = before[2].generate_device, after[2].generate_device
        if devices[0] != devices[1]:
            text = f"the hidden state moves from {devices[0]} to {devices[1]} at layer {layer}"
            line = after[1].line if after[1] else 1
            todo = "kbench inserts the transfer"
            found.append(Finding("device-break", INFO, rules.path, line, "device flow", text, "", todo))
    return found


def _residuals(
    rules: RuleSet, layers: Mapping[int, list[PlacedModule]], residuals: Mapping[int, PlacedModule]
) -> list[Finding]:
    """Layers whose residual is added elsewhere than on the device of their modules: mostly a rule that matches what is
    in a layer, and not the layer itself."""
    apart: dict[tuple[Device, Device], list[int]] = {}
    for layer, (_, _, placement) in residuals.items():
        where = home(layers[layer])
        if placement.generate_device != where:
            apart.setdefault((placement.generate_device, where), []).append(layer)
    findings = []
    for (device, where), numbers in apart.items():
        rule, name = residuals[numbers[0]][1], residuals[numbers[0]][0].name
        which = f"layer{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
        text = f"the residual of {which} is added on {device}, its modules are on {where}: it crosses over and back"
        head = name.removesuffix(str(numbers[0])).replace(".", r"\.")
        todo = f"place the layer itself, with name: '^{head}{number_regex(numbers)}$', on {where}"
        line = rule.line if rule else 1
        findings.append(Finding("residual", INFO, rules.path, line, "device flow", text, "", todo))
    return findings


def _strays(
    rules: RuleSet,
    layers: Mapping[int, list[PlacedModule]],
    rest: Sequence[PlacedModule],
    transfer_map: TransferMap,
    default: Placement,
) -> list[Finding]:
    """Modules that are not on the device that the hidden state is on, by rule and device.

    A module without a rule follows the map here; in KTransformers it does not.
    """
    if rules.is_kt:
        layers = {layer: _as_there(modules, default) for layer, modules in layers.items()}
        rest = _as_there(rest, default)
    current = home(layers[min(layers)])
    wrong: dict[tuple[int, Device, Device], list[str]] = {}
    by_number = {rule.number: rule for rule in rules.rules}
    for layer in sorted(layers):
        current = transfer_map.devices.get(layer, current)
        _collect(layers[layer], current, wrong)
    _collect(rest, current, wrong)
    severity: Severity = ERROR if rules.is_kt else WARNING
    findings = []
    for (number, device, wanted), names in wrong.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        text = f"{names[0]}{more} on {device}, but the hidden state is on {wanted} there"
        numbers = [layer for layer in map(layer_of, names) if layer is not None]
        todo = f"move them to {wanted}"
        if device.kind == "cpu":
            todo += f", or use an operator with out_device: {wanted}"
        elif numbers and min(numbers) in transfer_map.devices:
            todo += f", or take {min(numbers)} out of transfer_map"
        elif numbers:
            todo += f", or add {{{min(numbers)}: {device}}} to transfer_map of the Model rule"
        if number in by_number:
            part = "replace.kwargs.generate_device"
            findings.append(rules.finding("device-flow", severity, by_number[number], part, text, "", todo))
        else:
            text, todo = f"no rule for {text}", todo.replace("move them", "add a rule that moves them", 1)
            if transfer_map.device(names[0]) == wanted:
                text += ", and kbench runs them there"
            findings.append(Finding("device-flow", severity, rules.path, 1, "rules", text, "", todo))
    return findings


def _as_there(modules: Sequence[PlacedModule], default: Placement) -> list[PlacedModule]:
    return [(module, rule, placement if rule else default) for module, rule, placement in modules]


def _collect(
    modules: Sequence[PlacedModule], current: Device, wrong: dict[tuple[int, Device, Device], list[str]]
) -> None:
    for module, rule, placement in modules:
        device = placement.generate_device
        # An operator on the CPU takes its input from anywhere and leaves its output on out_device.
        if device == current or (device.kind == "cpu" and placement.out_device == current):
            continue
        wrong.setdefault((rule.number if rule else 0, device, current), []).append(module.name)
