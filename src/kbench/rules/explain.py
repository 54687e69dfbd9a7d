"""What a rule file does to a model: module -> rule -> operator -> device and implementation per phase -> bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kbench.core import Device, Module, Phase, Placement

from .budget import Memory, device_memory
from .fold import ranges, split_number
from .gpu_experts import part_bytes
from .match import assign, place
from .schema import DEFAULT, RuleSet
from .transfer_map import layer_of


@dataclass(frozen=True, slots=True)
class Row:
    """One module, or, folded, ``n_modules`` equal ones of as many layers.

    ``rule`` and ``line`` are None where no rule matched. ``above`` names the match with ``recursive: false`` that the
    module lies below; ``map_line`` is the line of the ``transfer_map`` where that chose the device. ``n_bytes`` counts
    the modules' own tensors, ``gpu_experts_bytes`` what of them lies on the device of ``gpu_experts``.
    """

    module: str
    classes: tuple[str, ...]
    rule: int | None
    line: int | None
    above: str | None
    operator: str
    placement: Placement
    n_bytes: int
    n_modules: int = 1
    map_line: int | None = None
    gpu_experts_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        p, part = self.placement, self.placement.gpu_experts
        elsewhere: dict[str, Any] | None = None
        if part is not None:
            elsewhere = {"experts": list(part.experts), "device": str(part.device), "implementation": part.op}
            elsewhere["bytes"] = self.gpu_experts_bytes
        return {
            "module": self.module,
            "n_modules": self.n_modules,
            "rule": self.rule,
            "line": self.line,
            "above": self.above,
            "map_line": self.map_line,
            "operator": self.operator,
            "decode": {"device": str(p.generate_device), "implementation": p.generate_op},
            "prefill": {"device": str(p.prefill_device), "implementation": p.prefill_op},
            "out_device": None if p.out_device is None else str(p.out_device),
            "threads": p.threads,
            "generate_threads": p.thread_count(Phase.DECODE),
            "prefill_threads": p.thread_count(Phase.PREFILL),
            "block": dict(p.block),
            "absorb_for_prefill": p.absorb_for_prefill,
            "gpu_experts": elsewhere,
            "bytes": self.n_bytes,
        }


def explain(rules: RuleSet, tree: Module, default: Placement | None = None) -> list[Row]:
    """One row per module, parents before children.

    Raises:
        UserError: the rules have errors.
    """
    matched, placer = place(rules, tree, default)
    return [
        Row(
            found.module.name,
            found.module.classes,
            found.rule.number if found.rule else None,
            found.rule.line if found.rule else None,
            found.above,
            found.rule.replace_class if found.rule else DEFAULT,
            placement,
            sum(tensor.n_bytes for tensor in found.module.tensors),
            map_line=placer.map_line(found),
            gpu_experts_bytes=part_bytes(found.module, placement),
        )
        for found, placement in ((found, placer.placement(found)) for found in matched)
    ]


def hidden_state(rows: Sequence[Row]) -> dict[Phase, list[tuple[str, Device]]]:
    """Where the residual of the layers is added, by phase: ``("0-29", cuda:0), ("30-59", cuda:1)``."""
    found: dict[Phase, list[tuple[str, Device]]] = {}
    layers = [row for row in rows if "DecoderLayer" in row.classes]
    for phase in (Phase.DECODE, Phase.PREFILL):
        runs: list[tuple[list[int], Device]] = []
        for row in layers:
            number, device = layer_of(row.module), row.placement.device(phase)
            if number is None:
                continue
            if not runs or runs[-1][1] != device:
                runs.append(([], device))
            runs[-1][0].append(number)
        found[phase] = [(ranges(numbers), device) for numbers, device in runs]
    return found


def memory_by_device(rules: RuleSet, tree: Module, besides: Memory) -> dict[Device, dict[str, int]]:
    """Device -> what takes memory there -> bytes: weights, and ``besides``.

    Raises:
        UserError: the rules have errors.
    """
    placements = assign(rules, tree)
    return device_memory(rules, [(module, None, placements[module.name]) for module in tree.walk()], besides)


def weights_by_device(rows: Sequence[Row]) -> dict[Phase, dict[Device, int]]:
    """Bytes of the rows' weights on each device, by phase."""
    totals: dict[Phase, dict[Device, int]] = {Phase.DECODE: {}, Phase.PREFILL: {}}
    for row in rows:
        part = row.placement.gpu_experts
        for phase, by_device in totals.items() if row.n_bytes else ():
            device = row.placement.device(phase)
            by_device[device] = by_device.get(device, 0) + row.n_bytes - row.gpu_experts_bytes
            if part is not None and row.gpu_experts_bytes:
                by_device[part.device] = by_device.get(part.device, 0) + row.gpu_experts_bytes
    return totals


def fold_rows(rows: Sequence[Row]) -> list[Row]:
    """Equal rows of several layers as one: ``model.layers.1-59.mlp.experts``."""
    groups: list[tuple[Row, list[Row]]] = []
    for row in rows:
        head, number, tail = split_number(row.module)
        above = None if row.above is None else split_number(row.above)[2]
        name = f"{head}{tail}" if number is not None else row.module
        key = replace(row, module=name, n_bytes=0, gpu_experts_bytes=0, above=above)
        if number is None:
            groups.append((row, [row]))
            continue
        for other, members in reversed(groups):
            if other == key:
                members.append(row)
                break
        else:
            groups.append((key, [row]))
    return [_folded(members) for _, members in groups]


def _folded(rows: list[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    head, _, tail = split_number(rows[0].module)
    numbers = [number for row in rows if (number := split_number(row.module)[1]) is not None]
    n_bytes, part = sum(row.n_bytes for row in rows), sum(row.gpu_experts_bytes for row in rows)
    above = rows[0].above
    if above is not None and split_number(above)[1] is not None:
        above = f"{split_number(above)[0]}{ranges(numbers)}{split_number(above)[2]}"
    module = f"{head}{ranges(numbers)}{tail}"
    return replace(
        rows[0], module=module, above=above, n_bytes=n_bytes, gpu_experts_bytes=part, n_modules=len(rows)
    )  # fmt: skip
