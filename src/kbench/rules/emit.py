"""An assignment written as a rule file that reads back as the same assignment.

Every module gets exactly one rule, by an anchored pattern on its name, so neither the order of the rules nor the
default placement matters. Modules of the same class, placement and layers share a rule; layer numbers are folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kbench.core import (
    Assignment,
    CheckBroken,
    Module,
    Phase,
    Placement,
    UserError,
    format_bytes,
    is_injected,
    parse_yaml,
    write_whole,
)

from .fold import either, number_regex, split_number
from .gpu_experts import experts_text
from .match import assign
from .operators import REGISTRY, THREADS
from .pattern import MAX_PATTERN
from .schema import DEFAULT, THRESHOLDS, VERSION, parse_rules

# What modules of one rule have in common: placement, operator, whether leaves, what stands before the number.
Kind = tuple[tuple[object, ...], str, bool, "str | None"]


# The operator of decode names the class where phases have different ones of somebody's own.
_PHASES = (Phase.DECODE, Phase.PREFILL)


@dataclass(slots=True)
class Group:
    """Modules that share a rule.

    With a ``head``: ``head``, one of ``numbers``, one of ``tails``; without: the ``tails`` are whole names.
    """

    placement: Placement
    operator: str
    leaf: bool
    head: str | None
    numbers: frozenset[int]
    tails: dict[str, list[Module]]


def emit(
    assignment: Assignment,
    tree: Module,
    provenance: Mapping[str, Any] | None = None,
    *,
    trust: Sequence[str] = (),
    prefill_threshold: int = 0,
) -> str:
    """YAML in kbench's form; ``assign(parse(emit(a, tree)), tree) == a`` for every module of ``tree``.

    A module that ``assignment`` lacks is written with ``Placement()``. ``provenance`` is plain data (text, numbers,
    lists, mappings) and comes first. ``prefill_threshold``: longer prompts prefill layer by layer; 0: none does.

    Raises:
        UserError: a placement that no rule can express (an unknown implementation), or provenance that is no data.
    """
    whole = {module.name: assignment.get(module.name, Placement()) for module in tree.walk()}
    lines = [f"kbench: {VERSION}"]
    if provenance:
        data = _data(provenance, "provenance")
        text = yaml.safe_dump({"provenance": data}, sort_keys=False, allow_unicode=True, width=110)
        lines.append(text.rstrip("\n"))
    lines.append("rules:")
    end = r"\Z" if any("\n" in name for name in whole) else "$"  # "$" also matches before a last line break
    for group in group_modules(whole, tree):
        for pattern, modules in name_patterns(group, end):
            lines += _rule(group, pattern, modules, prefill_threshold)
    text = "\n".join(lines) + "\n"
    rules = parse_rules(parse_yaml(text), "<emitted>", trust=trust)
    if assign(rules, tree, Placement()) != whole:
        raise CheckBroken("the emitted rules do not read back as the assignment", where="emit")
    return text


def group_modules(assignment: Assignment, tree: Module) -> list[Group]:
    """Modules by what one rule can say, in the order of the tree."""
    stems: dict[tuple[str, Kind], list[Module]] = {}
    for module in tree.walk():
        head, number, tail = split_number(module.name)
        operator = module.classes[0] if module.classes and module.classes[0] in REGISTRY else DEFAULT
        operator = next(filter(is_injected, map(assignment[module.name].implementation, _PHASES)), operator)
        before, rest = (None, head) if number is None else (head, tail)
        kind = _hashable(assignment[module.name]), operator, not module.children, before
        stems.setdefault((rest, kind), []).append(module)
    groups: dict[tuple[Kind, frozenset[int]], Group] = {}
    for (tail, kind), modules in stems.items():
        numbers = frozenset(number for module in modules if (number := split_number(module.name)[1]) is not None)
        new = Group(assignment[modules[0].name], *kind[1:], numbers, {})
        groups.setdefault((kind, numbers), new).tails[tail] = modules
    return list(groups.values())


def write_rules(path: Path | str, text: str) -> None:
    """Writes ``text`` whole or not at all: a full disk or a kill leaves no half file.

    Raises:
        UserError: the file cannot be written there.
    """
    write_whole(Path(path), text.encode())


def _hashable(placement: Placement) -> tuple[object, ...]:
    p = placement
    block = tuple(sorted(p.block.items()))
    threads = p.threads, p.generate_threads, p.prefill_threads
    kwargs = yaml.safe_dump(_data(p.kwargs, "kwargs")) if p.kwargs else ""
    phases = (p.generate_device, p.generate_op, p.prefill_device, p.prefill_op)
    return (*phases, p.out_device, *threads, block, kwargs, p.absorb_for_prefill, p.gpu_experts)


def name_patterns(group: Group, end: str = "$") -> Iterator[tuple[str, list[Module]]]:
    """Anchored patterns of a group with the modules that each matches: one, unless it grew too long."""
    start = "^" if group.head is None else f"^{re.escape(group.head)}{number_regex(group.numbers)}"
    chunk: list[str] = []
    for tail in group.tails:
        if chunk and len(start) + len(either([*chunk, tail])) + len(end) > MAX_PATTERN:
            yield start + either(chunk) + end, [module for name in chunk for module in group.tails[name]]
            chunk = []
        chunk.append(tail)
    yield start + either(chunk) + end, [module for name in chunk for module in group.tails[name]]


def _rule(group: Group, pattern: str, modules: Sequence[Module], prefill_threshold: int) -> list[str]:
    p = group.placement
    kwargs = [("generate_device", _scalar(str(p.generate_device))), ("generate_op", _scalar(p.generate_op))]
    kwargs += [("prefill_device", _scalar(str(p.prefill_device))), ("prefill_op", _scalar(p.prefill_op))]
    if p.out_device is not None:
        kwargs.append(("out_device", _scalar(str(p.out_device))))
    kwargs += [(key, str(count)) for key in THREADS if (count := getattr(p, key)) is not None]
    if p.block:
        pairs = (f"{_scalar(n)}: {_scalar(v) if isinstance(v, str) else v}" for n, v in p.block.items())
        kwargs.append(("block", f"{{{', '.join(pairs)}}}"))
    kwargs += [(_scalar(key), _flow(value)) for key, value in p.kwargs.items()]
    if p.absorb_for_prefill is not None:
        kwargs.append(("absorb_for_prefill", str(p.absorb_for_prefill).lower()))
    if p.gpu_experts is not None:
        kwargs.append(("gpu_experts", experts_text(p.gpu_experts.experts)))
        kwargs.append(("gpu_experts_device", _scalar(str(p.gpu_experts.device))))
        kwargs.append(("gpu_experts_op", _scalar(p.gpu_experts.op)))
    if group.operator == "Model" and prefill_threshold:
        kwargs.append((THRESHOLDS[0], str(prefill_threshold)))
    tensors = [tensor for module in modules for tensor in module.tensors]
    kinds = list(dict.fromkeys(tensor.kind for tensor in tensors))
    size = f", {format_bytes(sum(tensor.n_bytes for tensor in tensors))}" if tensors else ""
    # Kinds are words of ours for tensors, but a comment must not be able to end its line.
    label = " ".join(f"{', '.join(kinds)}: ".split()) + " " if kinds else ""
    lines = [
        f"# {label}{len(modules)} module{'s' if len(modules) != 1 else ''}{size}",
        f"- match: {{name: {_quoted(pattern)}}}",
        "  replace:",
        f"    class: {group.operator}",
        f"    kwargs: {{{', '.join(f'{key}: {value}' for key, value in kwargs)}}}",
    ]
    if group.operator == "Experts" and group.leaf:
        lines.append("  recursive: false")
    return lines


def _flow(value: Any) -> str:
    text = yaml.safe_dump(_data(value, "kwargs"), default_flow_style=True, allow_unicode=True, width=1 << 30)
    return str(text).removesuffix("\n").removesuffix("\n...")


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")


def _scalar(text: str) -> str:
    """``text`` as YAML reads it back: plain where that is safe."""
    return text if _PLAIN.fullmatch(text) and parse_yaml(text) == text else _quoted(text)


def _quoted(text: str) -> str:
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 30)).rstrip("\n")


def _data(value: Any, where: str) -> Any:
    """Plain data, or UserError: a rule file holds no objects."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _data(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(item, where) for item in value]
    raise UserError(
        f"{type(value).__name__} is no plain data", where=where, accepted="text, numbers, lists and mappings"
    )
