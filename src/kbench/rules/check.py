"""Everything that can be known to be wrong with a rule file before a model is loaded, all at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kbench.core import (
    AUTO,
    Assignment,
    Device,
    Module,
    Phase,
    Placement,
    UserError,
    did_you_mean,
    format_bytes,
    is_injected,
)

from .budget import Memory, budget_findings
from .capture import FindUncaptured, capture_findings
from .classes import KNOWN_CLASSES, answers_to, is_known
from .finding import ERROR, INFO, WARNING, Finding
from .flow import flow_findings
from .gpu_experts import part_findings
from .kernel_parameters import CheckBlock, block_findings
from .match import Matched, Placer, match_modules, matches
from .operators import OPERATORS, REGISTRY
from .peer import peer_findings
from .resolution import Resolution, resolve
from .schema import DEFAULT, Rule, RuleSet

# (implementation, quant type) -> True, or False, or the reason why not.
CanTake = Callable[[str, str], "bool | str"]

# Tells of an assignment which modules (``where``) somebody's own operators cannot replace, and why.
CannotReplace = Callable[[Assignment], Iterable[UserError]]

# Spelling is compared with every module's name, tenths of a second a rule: for the first rules that match nothing, and
# for patterns that a name could be meant by.
_MAX_HINTS = 10
_MAX_HINTED_CHARS = 120

# Modules whose operator multiplies by their tensors: the ones whose quant type an implementation must take.
_MULTIPLYING = ("Linear", "Experts", "MoEGate")


@dataclass(frozen=True, slots=True)
class Placed:
    """A matched module with what its rule came to."""

    matched: Matched
    placement: Placement
    resolution: Resolution | None


def check(
    rules: RuleSet,
    tree: Module | None = None,
    *,
    strict: bool = False,
    devices: Collection[Device] | None = None,
    can_take: CanTake | None = None,
    check_block: CheckBlock | None = None,
    default: Placement | None = None,
    budgets: Mapping[Device, int] | None = None,
    besides: Memory | None = None,
    cannot_replace: CannotReplace | None = None,
    find_uncaptured: FindUncaptured | None = None,
    faults: Iterable[UserError] = (),
) -> list[Finding]:
    """Findings by line. Without a ``tree``, those that need no model.

    Args:
        strict: warnings (a rule that never matches, ...) become errors.
        devices: those that are there; None: any index is believed.
        can_take: whether an implementation takes a quant type; None: every one does.
        check_block: what is wrong with kernel parameters; None: nothing ever is.
        default: placement of modules without a rule; None: the dialect's own.
        budgets: bytes that a device has; of other devices none is known.
        besides: what running takes of each device besides weights; None: nothing is known of it.
        cannot_replace: where operators of somebody's own cannot be; None: they can be anywhere.
        find_uncaptured: what no CUDA graph can hold; None: nothing is known of it.
        faults: what is wrong with the model's tensors; ``where`` is the file, and the tensor.
    """
    default = rules.default_placement if default is None else default
    resolved = {rule.number: resolve(rules, rule) for rule in rules.rules}
    findings = [
        *map(_of_tensor, faults),
        *rules.findings,
        *(finding for one in resolved.values() for finding in one.findings),
    ]
    classes = frozenset(name for module in tree.walk() for name in module.classes) if tree else frozenset()
    for rule in rules.rules:
        findings += _class_findings(rules, rule, classes)
        findings += _missing_devices(rules, rule, resolved[rule.number], devices)
        findings += block_findings(rules, rule, resolved[rule.number], default, check_block)
    if tree is not None:
        matched = list(match_modules(rules, tree))
        placer = Placer(rules, matched, resolved, default)
        placed = [
            Placed(found, placer.placement(found), resolved[found.rule.number] if found.rule else None)
            for found in matched
        ]
        findings += _unused(rules, tree, placed)
        modules = [(one.matched.module, one.matched.rule, one.placement) for one in placed]
        findings += _unfit(rules, placed)
        findings += part_findings(rules, modules)
        findings += _without_kwargs(rules, placed)
        findings += _quants(rules, placed, can_take)
        findings += _own_operators(rules, placed, cannot_replace)
        assignment = {one.matched.module.name: one.placement for one in placed}
        findings += capture_findings(
            rules, assignment, {one.matched.module.name: one.matched.rule for one in placed}, find_uncaptured
        )
        findings += _unmatched(rules, placed)
        findings += flow_findings(rules, modules, placer.transfer_map, default)
        findings += budget_findings(rules, modules, budgets or {}, besides or {})
        if rules.is_kt:
            findings += peer_findings(rules, modules)
    if strict:
        findings = [finding.strict() for finding in findings]
    return sorted(findings, key=lambda finding: finding.line)


def _class_findings(rules: RuleSet, rule: Rule, tree_classes: Collection[str]) -> list[Finding]:
    name = rule.match_class
    if name is None or is_known(name, tree_classes):
        return []
    known = {*REGISTRY, *KNOWN_CLASSES, *tree_classes}
    todo = did_you_mean(name, known)
    short = name.rpartition(".")[2]
    same_name = sorted(path for path in known if path.rpartition(".")[2] == short)
    if same_name:  # the class is right, the path to it is not
        todo = did_you_mean(name, same_name) or f"did you mean {same_name[0]}?"
    accepted = "a registry name (Linear, Experts, ...) or a class of torch.nn, transformers or ktransformers.models"
    return [rules.finding("unknown-class", ERROR, rule, "match.class", f"unknown class {name!r}", accepted, todo)]


def _missing_devices(
    rules: RuleSet, rule: Rule, resolution: Resolution, devices: Collection[Device] | None
) -> list[Finding]:
    if devices is None:
        return []
    named: dict[str, Device | None] = {
        "generate_device": resolution.generate.device,
        "prefill_device": resolution.prefill.device,
        "out_device": resolution.out_device,
        "gpu_experts_device": resolution.gpu_experts.device if resolution.gpu_experts else None,
    }
    for layer, device in resolution.transfer_map.items():
        named[f"transfer_map.{layer}"] = device
    accepted = ", ".join(map(str, sorted(devices)))
    found: dict[Device, str] = {}
    for key, wanted in named.items():
        if wanted is not None and wanted not in devices:
            found.setdefault(wanted, key)
    return [
        rules.finding("no-device", ERROR, rule, f"replace.kwargs.{key}", f"device {device} is not there", accepted)
        for device, key in found.items()
    ]


def _unused(rules: RuleSet, tree: Module, placed: list[Placed]) -> list[Finding]:
    """Rules that place nothing: they match no module, or others come first."""
    used = {one.matched.rule.number for one in placed if one.matched.rule is not None}
    findings = []
    hints = _MAX_HINTS
    for rule in rules.rules:
        if rule.number in used:
            continue
        mine = [one.matched for one in placed if matches(rule, one.matched.module)]
        if mine:
            found = f"never used: {_count(mine)} that it matches {'is' if len(mine) == 1 else 'are'} taken before it"
            todo = f"by {_takers(mine)}; put the narrower rule first, or delete this one"
            findings.append(rules.finding("shadowed", WARNING, rule, "match", found, "", todo))
        elif rule.match_class is None or is_known(rule.match_class, [c for m in tree.walk() for c in m.classes]):
            findings.append(_never(rules, rule, tree, hint=hints > 0))
            hints -= 1
    return findings


def _takers(mine: list[Matched]) -> str:
    takers = []
    for number, line in sorted({(one.rule.number, one.rule.line) for one in mine if one.rule is not None}):
        above = [one.above for one in mine if one.rule is not None and one.rule.number == number and one.above]
        takers.append(f"rule {number} (line {line}{', recursive: false above them' if above else ''})")
    return ", ".join(takers)


def _never(rules: RuleSet, rule: Rule, tree: Module, *, hint: bool) -> Finding:
    """A rule that matches no module, and which half of its match is to blame; ``hint``: and what may be meant."""
    modules = list(tree.walk())
    pattern, class_name = rule.pattern(), rule.match_class
    by_name = [module for module in modules if pattern is not None and pattern.search(module.name)]
    by_class = [module for module in modules if class_name and answers_to(module.classes, class_name)]
    if class_name in OPERATORS and class_name not in REGISTRY:
        todo = f"{class_name} is an operator: match the class that it replaces"
        return rules.finding("never-matches", WARNING, rule, "match.class", "never matches a module", "", todo)
    if class_name is None:
        literal = (rule.match_name or "").replace("\\", "").strip("^$")
        hint = hint and len(literal) <= _MAX_HINTED_CHARS
        todo = did_you_mean(literal, [module.name for module in modules]) if hint else ""
    elif pattern is None:
        todo = "this model has no module of that class"
    elif by_name and by_class:
        todo = f"name matches {_names(by_name)}, class matches {_names(by_class)}, and no module is in both"
    elif by_name:
        kinds = ", ".join(sorted({module.classes[0] for module in by_name}))
        todo = f"name matches {_names(by_name)} of class {kinds}; this model has no {class_name}"
    else:
        todo = f"name matches nothing; class matches {_names(by_class) if by_class else 'nothing'}"
    return rules.finding("never-matches", WARNING, rule, "match", "never matches a module", "", todo)


def _names(modules: list[Module]) -> str:
    first = modules[0].name or "the root"
    return first if len(modules) == 1 else f"{len(modules)} modules such as {first}"


def _count(found: list[Matched]) -> str:
    return "the module" if len(found) == 1 else f"all {len(found)} modules"


def _unfit(rules: RuleSet, placed: list[Placed]) -> list[Finding]:
    """Operators on modules of another kind, e.g. Experts on a linear layer."""
    wrong: dict[int, list[Placed]] = {}
    for one in placed:
        operator, rule = one.resolution.operator if one.resolution else None, one.matched.rule
        if operator is None or rule is None or operator.foreign or operator.name == DEFAULT or one.matched.above:
            continue
        kinds = [name for name in one.matched.module.classes if name in REGISTRY]
        if operator.name not in kinds and not _linear_in_disguise(operator.name, one.matched.module):
            wrong.setdefault(rule.number, []).append(one)
    findings = []
    for ones in wrong.values():
        module, rule = ones[0].matched.module, ones[0].matched.rule
        assert rule is not None and ones[0].resolution is not None and ones[0].resolution.operator is not None
        name = ones[0].resolution.operator.name
        where = f"{module.name or 'the root'} is a {module.classes[0] if module.classes else 'module'}"
        more = f" (and {len(ones) - 1} more)" if len(ones) > 1 else ""
        found = f"{rule.replace_class} replaces {name} modules, but {where}{more}"
        todo = "narrow the match, or set class to default"
        findings.append(rules.finding("wrong-operator", ERROR, rule, "replace.class", found, "", todo))
    return findings


def _linear_in_disguise(name: str, module: Module) -> bool:
    # Qwen's router is a plain torch.nn.Linear.
    return name == "Linear" and answers_to(module.classes, "torch.nn.Linear")


def _without_kwargs(rules: RuleSet, placed: list[Placed]) -> list[Finding]:
    """`default` without a device on modules with weights: KTransformers fails on them with KeyError."""
    bare: dict[int, list[Placed]] = {}
    for one in placed:
        rule = one.matched.rule
        if rule is None or one.resolution is None or one.resolution.operator is None:
            continue
        if one.resolution.operator.name != DEFAULT or "generate_device" in (rule.kwargs or {}):
            continue
        if "replace" not in rule.lines:  # that was reported
            continue
        if not rules.is_kt and rule.kwargs:  # of kbench's own form: on the default device, with what it says
            continue
        if one.matched.module.tensors:
            bare.setdefault(rule.number, []).append(one)
    findings = []
    for ones in bare.values():
        rule, module = ones[0].matched.rule, ones[0].matched.module
        assert rule is not None
        more = f" and {len(ones) - 1} more" if len(ones) > 1 else ""
        found = f"default without generate_device on modules with weights ({module.name}{more})"
        accepted = "kwargs with generate_device, e.g. {generate_device: cpu, prefill_device: cpu}"
        findings.append(rules.finding("no-kwargs", ERROR, rule, "replace", found, accepted))
    return findings


def _quants(rules: RuleSet, placed: list[Placed], can_take: CanTake | None) -> list[Finding]:
    """Quant types that the chosen implementation does not take."""
    if can_take is None:
        return []
    found: dict[tuple[int, str, str], list[str]] = {}
    reasons: dict[tuple[str, str], bool | str] = {}
    by_number = {rule.number: rule for rule in rules.rules}
    for one in placed:
        module, rule = one.matched.module, one.matched.rule
        if rule is None or not module.classes or module.classes[0] not in _MULTIPLYING:
            continue
        used = [one.placement.implementation(phase) for phase in (Phase.DECODE, Phase.PREFILL)]
        if one.placement.gpu_experts is not None:
            used.append(one.placement.gpu_experts.op)
        for implementation in used:
            for tensor in module.tensors:
                key = implementation, tensor.quant
                if implementation != AUTO and key not in reasons:
                    reasons[key] = can_take(*key)
                if implementation != AUTO and reasons[key] is not True:
                    names = found.setdefault((rule.number, *key), [])
                    names += [tensor.name] if tensor.name not in names else []
    findings = []
    for (number, implementation, quant), names in found.items():
        reason = reasons[implementation, quant]
        why = f": {reason}" if isinstance(reason, str) and reason else ""
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        text = f"{implementation} does not take {quant} ({names[0]}{more}){why}"
        todo = f"set the op to {AUTO}, or match these modules with another rule"
        findings.append(rules.finding("quant", ERROR, by_number[number], "replace.kwargs.generate_op", text, "", todo))
    return findings


def _of_tensor(fault: UserError) -> Finding:
    path, _, name = fault.where.rpartition(": ")
    return Finding("model-tensor", ERROR, path, 0, name, fault.found, fault.accepted, fault.todo)


def _own_operators(rules: RuleSet, placed: list[Placed], cannot_replace: CannotReplace | None) -> list[Finding]:
    """Modules that no operator of somebody's own can stand for, one finding a rule and reason."""
    assignment = {one.matched.module.name: one.placement for one in placed}
    phases = ("generate_op", "prefill_op")
    if cannot_replace is None or not any(is_injected(getattr(one, op)) for one in assignment.values() for op in phases):
        return []
    rule_of = {one.matched.module.name: one.matched.rule for one in placed}
    found: dict[tuple[int, str], tuple[Rule, list[UserError]]] = {}
    for error in cannot_replace(assignment):
        rule = rule_of.get(error.where)
        if rule is not None:
            why = error.found.removesuffix(f" of {error.where.rpartition('.')[0]}")
            found.setdefault((rule.number, why), (rule, []))[1].append(error)
    findings = []
    for (_, why), (rule, errors) in found.items():
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        ops = (op for op in phases if is_injected(str((rule.kwargs or {}).get(op))))
        part = "replace.class" if is_injected(rule.replace_class) else f"replace.kwargs.{next(ops, phases[0])}"
        text = f"{why} ({errors[0].where}{more})"
        findings.append(rules.finding("own-operator", ERROR, rule, part, text, "", errors[0].todo))
    return findings


def _unmatched(rules: RuleSet, placed: list[Placed]) -> list[Finding]:
    ones = [one for one in placed if one.matched.rule is None and one.matched.module.tensors]
    alone = [one.matched.module for one in ones]
    if not alone or not rules.rules:
        return []
    n_bytes = sum(tensor.n_bytes for module in alone for tensor in module.tensors)
    found = f"{_names(alone)} with {format_bytes(n_bytes)} of weights match no rule and take the default placement"
    devices = ", ".join(map(str, sorted({one.placement.generate_device for one in ones})))
    return [Finding("unmatched", INFO, rules.path, 1, "rules", f"{found}: {devices}")]
