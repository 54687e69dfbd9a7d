"""``block`` of a rule: kernel parameters, which only the implementations know.

This package knows no implementation, so whoever knows them passes the judgement in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kbench.core import Block, Device, Phase, Placement, UserError

from .finding import ERROR, Finding
from .resolution import Resolution
from .schema import Rule, RuleSet

# (block, the implementations that read it with their devices) -> what is wrong, by the parameter's name.
CheckBlock = Callable[[Block, Sequence["tuple[str, Device]"]], Mapping[str, UserError]]


def block_findings(
    rules: RuleSet, rule: Rule, resolution: Resolution, default: Placement, check_block: CheckBlock | None
) -> list[Finding]:
    """What ``check_block`` says about the rule's ``block``, each at its line."""
    if check_block is None or not resolution.block:
        return []
    placement = resolution.placement(default)
    used = [(placement.implementation(phase), placement.device(phase)) for phase in Phase]
    return [
        rules.finding("block", ERROR, rule, f"replace.kwargs.block.{name}", error.found, error.accepted, error.todo)
        for name, error in check_block(placement.block, used).items()
    ]
