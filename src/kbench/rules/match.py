"""Which rule a module gets, exactly as KTransformers walks its model.

- Depth first, parents before children, from the root, whose name is ``""``.
- ``name`` by ``re.search`` on the dotted name; ``class`` by isinstance; both: both must hold.
- The first rule that matches wins; later ones add nothing.
- Nothing is inherited: a child of a matched module needs a rule of its own, or takes the default placement. In layers
  that a ``transfer_map`` moves the hidden state to, the default is on that device.
- Except below a match with ``recursive: false``: rules do not look there. KTransformers leaves such a subtree to the
  operator above it; here its modules take that operator's placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kbench.core import AUTO, Device, Module, Placement, UserError, is_injected

from .classes import answers_to
from .finding import ERROR
from .kernel_parameters import CheckBlock, block_findings
from .resolution import Resolution, resolve
from .schema import DEFAULT, Rule, RuleSet, read_rules
from .transfer_map import TransferMap, layer_of


@dataclass(frozen=True, slots=True)
class Matched:
    """A module and the rule that places it; ``above`` names the non-recursive match that it lies below."""

    module: Module
    rule: Rule | None
    above: str | None = None


def matches(rule: Rule, module: Module) -> bool:
    """Whether ``rule`` alone would match ``module``."""
    pattern = rule.pattern()
    if pattern is not None and pattern.search(module.name) is None:
        return False
    return rule.match_class is None or answers_to(module.classes, rule.match_class)


def match_modules(rules: RuleSet, tree: Module) -> Iterator[Matched]:
    """Every module of ``tree`` with its rule, parents before children."""
    stack: list[tuple[Module, Matched | None]] = [(tree, None)]
    while stack:
        module, above = stack.pop()
        if above is not None:
            found = Matched(module, above.rule, above.above if above.above is not None else above.module.name)
        else:
            found = Matched(module, next((rule for rule in rules.rules if matches(rule, module)), None))
        yield found
        closed = above is not None or (found.rule is not None and not found.rule.recursive)
        stack.extend((child, found if closed else None) for child in reversed(module.children))


def load_rules(path: Path | str, *, trust: tuple[str, ...] = ()) -> RuleSet:
    """A rule file that can be used; ``trust`` names packages whose operators it may use (never imported here).

    Raises:
        UserError: the file cannot be read, or has errors: all of them in one message.
    """
    rules = read_rules(path, trust=trust)
    _refuse(rules, rules.default_placement)
    return rules


def assign(
    rules: RuleSet, tree: Module, default: Placement | None = None, *, check_block: CheckBlock | None = None
) -> dict[str, Placement]:
    """The placement of every module of ``tree``, the root included.

    ``default`` is for modules that no rule matches: None means KTransformers' ``cuda:0`` for its dialect, the CPU for
    kbench's. ``check_block`` tells what is wrong with kernel parameters; None: nothing ever is.

    Raises:
        UserError: the rules have errors: all of them in one message.
    """
    found, placer = place(rules, tree, default, check_block=check_block)
    return {one.module.name: placer.placement(one) for one in found}


def place(
    rules: RuleSet, tree: Module, default: Placement | None = None, *, check_block: CheckBlock | None = None
) -> tuple[list[Matched], Placer]:
    """Every module of ``tree`` with its rule, and what places it. As ``assign``, which keeps the placements only."""
    default = rules.default_placement if default is None else default
    _refuse(rules, default, check_block)
    found = list(match_modules(rules, tree))
    return found, Placer.of(rules, found, default)


class Placer:
    """Places the modules of one tree.

    Attributes:
        transfer_map: that of the rule which places the model.
    """

    def __init__(
        self, rules: RuleSet, found: Sequence[Matched], resolved: Mapping[int, Resolution], default: Placement
    ) -> None:
        """``found``: all modules of the tree; ``resolved``: the rules by number."""
        self._rules, self._resolved, self._default = rules, resolved, default
        self._by_rule: dict[tuple[int, Device | None], Placement] = {}
        self.transfer_map = self._map(found)

    @classmethod
    def of(cls, rules: RuleSet, found: Sequence[Matched], default: Placement) -> Placer:
        return cls(rules, found, {rule.number: resolve(rules, rule) for rule in rules.rules}, default)

    def _map(self, found: Sequence[Matched]) -> TransferMap:
        layers = {layer_of(one.module.name) for one in found}
        rule = next((one.rule for one in found if "Model" in one.module.classes), None)
        if rule is None:
            return TransferMap({})
        devices = self._resolved[rule.number].transfer_map
        return TransferMap({layer: device for layer, device in devices.items() if layer in layers}, rule)

    def placement(self, found: Matched) -> Placement:
        """The placement of a module.

        An operator of somebody's own is made for the module that a rule matches, not once more for each below it.
        """
        name = found.module.name
        if found.rule is None or self._is_weightless_layer(found):
            return self.transfer_map.default(name, self._default)
        key = found.rule.number, self.transfer_map.device(name)
        if key not in self._by_rule:
            default = self.transfer_map.default(name, self._default)
            self._by_rule[key] = self._resolved[found.rule.number].placement(default)
        placement = self._by_rule[key]
        if found.above is None:
            return placement
        ops = {key: AUTO for key in ("generate_op", "prefill_op") if is_injected(getattr(placement, key))}
        return replace(placement, **ops, kwargs={}) if ops else placement  # type: ignore[arg-type]

    def map_line(self, found: Matched) -> int | None:
        """The line of the transfer_map if it chose the module's device."""
        if self.transfer_map.device(found.module.name) is None:
            return None
        return self.transfer_map.line if self._is_open(found) or self._is_weightless_layer(found) else None

    def _is_open(self, found: Matched) -> bool:
        return found.rule is None or self._resolved[found.rule.number].generate.leaves_device_open

    def _is_weightless_layer(self, found: Matched) -> bool:
        """In KTransformers, ``default`` on a layer itself (which has no weights of its own) changes nothing: where the
        map sends the hidden state, its residual is added."""
        return (
            self._rules.is_kt
            and found.rule is not None
            and found.rule.replace_class == DEFAULT
            and "DecoderLayer" in found.module.classes
            and self.transfer_map.device(found.module.name) is not None
        )


def _refuse(rules: RuleSet, default: Placement, check_block: CheckBlock | None = None) -> None:
    found = list(rules.findings)
    for rule in rules.rules:
        resolution = resolve(rules, rule)
        found += [*resolution.findings, *block_findings(rules, rule, resolution, default, check_block)]
    errors = sorted((finding for finding in found if finding.severity is ERROR), key=lambda finding: finding.line)
    if errors:
        raise UserError("\n".join(map(str, errors)))
