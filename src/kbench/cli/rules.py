"""`kbench rules`: checks rule files, explains what they do to a model, says them in other tools' words."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kbench.core import Device, Phase, Placement, UserError, did_you_mean, format_bytes, parse_size

from .output import plural, print_json, shown, shown_lines, stdout_console
from .rules_export import export
from .rules_tensors import print_tensors

if TYPE_CHECKING:
    from kbench.core import Module
    from kbench.model import Crossing, ModelDescriptor
    from kbench.rules import Finding, Row, RuleSet

_RULES = typer.Argument(help="The rule file (YAML).")
_MODEL = typer.Option(None, "--model", "-m", help="A .gguf file, a config.json, or an embedded model.")
_JSON = typer.Option(False, "--json", help="One JSON object on stdout.")
_TRUST = typer.Option([], "--trust", help="A package whose operators the rules may name; may be repeated.")


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    rules = typer.Typer(
        name="rules",
        no_args_is_help=True,
        help="Check, explain and export rule files: which module runs where, and how.\n\n"
        "Example: [bold]kbench rules explain my.yaml --model deepseek-v2-chat[/bold]",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    rules.command(name="check")(check)
    rules.command(name="explain")(explain)
    rules.command(name="export")(export)
    app.add_typer(rules)


def check(
    path: Path = _RULES,
    model: str | None = _MODEL,
    strict: bool = typer.Option(False, "--strict", help="Warnings, such as a rule that never matches, are errors."),
    devices: str | None = typer.Option(None, "--devices", help="Those that there are, e.g. cpu,cuda:0,cuda:1."),
    vram: str | None = typer.Option(None, "--vram", help="Bytes that each GPU has, e.g. 24G (with --model)."),
    dram: str | None = typer.Option(None, "--dram", help="Bytes of memory, e.g. 136G (with --model)."),
    context: int | None = typer.Option(
        None, "--context", min=1, help="Tokens of the cache that budgets count. Default: the model's, up to 4096."
    ),
    kv: str = typer.Option("f16", "--kv", help="Type of that cache: f16, bf16, q8_0 or f32."),
    trust: list[str] = _TRUST,
    json: bool = _JSON,
) -> None:
    """Find every mistake in a rule file before a model is loaded. Exit code 1 if there is an error.

    With --vram, --dram or --context, also what each device needs: weights, cache and workspace.

    Example: kbench rules check my.yaml --model deepseek-v2-chat --strict --vram 24G --dram 136G --context 8192
    """
    from kbench.engine import planned_uncaptured
    from kbench.kernels import block_errors
    from kbench.model import build_tree, load_descriptor, operator_errors
    from kbench.rules import Severity, read_rules
    from kbench.rules import check as check_rules

    rules = read_rules(path, trust=trust)
    present = None if devices is None else {Device.parse(name.strip(), "--devices") for name in devices.split(",")}
    counted = vram is not None or dram is not None or context is not None
    if not model and counted:
        raise UserError("a budget without a model", where="--vram, --dram, --context", todo="add --model")
    budgets = _budgets(vram, dram)
    faults: list[UserError] = []
    descriptor = load_descriptor(model, faults=faults)[0] if model else None
    tree = build_tree(descriptor) if descriptor else None
    memory = _memory(rules, descriptor, tree, context, kv) if descriptor and tree and counted else {}
    findings = check_rules(
        rules,
        tree,
        strict=strict,
        devices=present,
        can_take=_can_take,
        check_block=block_errors,
        budgets=budgets,
        besides=memory,
        cannot_replace=functools.partial(operator_errors, descriptor) if descriptor else None,
        find_uncaptured=functools.partial(planned_uncaptured, descriptor) if descriptor else None,
        faults=faults,
    )
    counts = {str(severity): sum(found.severity is severity for found in findings) for severity in Severity}
    if json:
        fields = {"path": str(path), "model": model, "strict": strict, "n_rules": len(rules.rules), "counts": counts}
        told = [
            {"device": str(device), "bytes": lines, "budget_bytes": budgets.get(device)}
            for device, lines in memory.items()
        ]
        print_json("rules.check", 1, {**fields, "memory": told, "findings": [found.as_dict() for found in findings]})
    else:
        _print_findings(findings)
        _print_memory(memory, budgets)
        found = ", ".join(plural(count, name) for name, count in counts.items() if count)
        against = f" against {model}" if model else " without a model (--model finds rules that never match)"
        print(f"{path}: {plural(len(rules.rules), 'rule')} checked{against}: {found or 'nothing found'}")
    if counts["error"]:
        raise typer.Exit(1)


def _budgets(vram: str | None, dram: str | None) -> dict[Device, int]:
    # More hosts and GPUs than anybody has: a budget holds for each one that the rules name.
    hosts = range(64)
    budgets = {Device("cuda", i, h): parse_size(vram, "--vram") for i in range(16) for h in hosts} if vram else {}
    return budgets | ({Device("cpu", 0, host): parse_size(dram, "--dram") for host in hosts} if dram else {})


def _memory(
    rules: RuleSet, descriptor: ModelDescriptor, tree: Module, context: int | None, kv: str
) -> dict[Device, dict[str, int]]:
    """What each device holds under ``rules``; nothing where they have errors that keep modules from being placed."""
    from kbench.engine import DEFAULT_CHUNK, DEFAULT_CONTEXT, planned_needs
    from kbench.rules import assign, memory_by_device

    context = context or min(DEFAULT_CONTEXT, descriptor.context_length or DEFAULT_CONTEXT)
    try:
        placements = assign(rules, tree)
        besides = planned_needs(descriptor, placements, context, kv, DEFAULT_CHUNK, rules.prefill_threshold)
    except UserError:  # check tells
        return {}
    return memory_by_device(rules, tree, besides)


def _print_memory(memory: Mapping[Device, Mapping[str, int]], budgets: Mapping[Device, int]) -> None:
    for device, lines in memory.items():
        budget = budgets.get(device)
        of = "" if budget is None else f" of {format_bytes(budget)}"
        print(f"{device}: {format_bytes(sum(lines.values()))}{of}")
        width = max(map(len, lines))
        for name, n_bytes in lines.items():
            if n_bytes:
                print(f"  {name:{width}}  {format_bytes(n_bytes):>9}")


def _can_take(implementation: str, quant: str) -> bool | str:
    """What this build's kernels say; those that it does not have or that need another machine are believed."""
    from kbench.core import Problem
    from kbench.kernels import implementations

    found = next((item for item in implementations() if item.name == implementation), None)
    if found is None or not found.runnable().ok:
        return True
    # Only the type matters here: any shape that every block size divides will do.
    support = found.supports(Problem.make("linear", quant=quant, n=256, k=256, tokens=1))
    return support.ok or support.reason


def _print_findings(findings: list[Finding]) -> None:
    for found in findings:
        print(shown_lines(f"{found.severity}: {found}"))


def explain(
    path: Path = _RULES,
    module: str | None = typer.Argument(None, help="Only this module (and those below it), one row each."),
    model: str = typer.Option(..., "--model", "-m", help=_MODEL.help),
    tensors: bool = typer.Option(False, "--tensors", help="Every tensor: type, bytes, devices, implementations."),
    trust: list[str] = _TRUST,
    json: bool = _JSON,
) -> None:
    """Show where a rule file puts each module of a model, how it runs there, and which rule says so.

    With --tensors, where each tensor lies (KTransformers' tensor_device_map).

    Example: kbench rules explain my.yaml --model deepseek-v2-chat model.layers.3.mlp
    """
    from kbench.model import build_tree, load_descriptor
    from kbench.rules import explain as explain_rules
    from kbench.rules import fold_rows, hidden_state, load_rules, tensor_map

    rules = load_rules(path, trust=tuple(trust))
    descriptor = load_descriptor(model)[0]
    tree = build_tree(descriptor)
    rows = explain_rules(rules, tree)
    moved = _crossings(descriptor, rows)
    path_of_state = hidden_state(rows)
    if module is None:
        rows = fold_rows(rows)
    else:
        known = [row.module for row in rows]
        rows = [row for row in rows if row.module == module or row.module.startswith(f"{module}.")]
        if not rows:
            raise UserError(f"no module {module!r} in {model}", todo=did_you_mean(module, known))
    told_of = {row.module for row in rows}
    mapped = [row for row in tensor_map(rules, tree) if module is None or row.module in told_of] if tensors else []
    if json:
        told = {
            str(phase): [{"layers": layers, "device": str(device)} for layers, device in runs]
            for phase, runs in path_of_state.items()
        }
        fields = {"path": str(path), "model": model, "hidden_state": told, "rows": [row.as_dict() for row in rows]}
        fields["transfers"] = {str(phase): [asdict(one) for one in found] for phase, found in moved.items()}
        if tensors:
            fields["tensors"] = [row.as_dict() for row in mapped]
        print_json("rules.explain", 1, fields)
    elif tensors:
        _print_totals(rows, print_tensors(mapped))
    else:
        _print_rows(rows)
        if module is None:
            _print_path(path_of_state)
            _print_crossings(moved)


# Tokens of the prefill step whose transfers are told.
_PREFILL_TOKENS = 256


def _crossings(descriptor: ModelDescriptor, rows: Sequence[Row]) -> dict[Phase, list[Crossing]]:
    """What crosses between devices in a step of each phase."""
    from kbench.model import planned_crossings

    placed = {row.module: row.placement for row in rows}
    tokens = {Phase.DECODE: 1, Phase.PREFILL: _PREFILL_TOKENS}
    try:
        return {phase: planned_crossings(descriptor, placed, phase, n) for phase, n in tokens.items()}
    except UserError:  # check tells what is wrong with an operator of somebody's own
        return {}


def _print_crossings(moved: Mapping[Phase, Sequence[Crossing]]) -> None:
    for phase, found in moved.items():
        step = "a token" if phase is Phase.DECODE else f"{_PREFILL_TOKENS} tokens"
        told = ", ".join(
            f"{one.src} to {one.dst} {one.n_transfers} of {format_bytes(one.n_bytes)} together" for one in found
        )
        if told:
            print(f"transfers, {phase} ({step}): {told}")


def _threads(placement: Placement) -> str:
    """One count, or decode's and prefill's where they differ; empty: the engine's."""
    decode, prefill = (str(placement.thread_count(phase) or "") for phase in (Phase.DECODE, Phase.PREFILL))
    return decode if decode == prefill else f"{decode or 'all'} / {prefill or 'all'}"


def _print_path(by_phase: dict[Phase, list[tuple[str, Device]]]) -> None:
    """Where the hidden state is, if it moves at all."""
    told = {phase: ", ".join(f"{layers} on {device}" for layers, device in runs) for phase, runs in by_phase.items()}
    if max(map(len, by_phase.values())) < 2 and len(set(told.values())) == 1:
        return
    for phase, text in told.items() if len(set(told.values())) > 1 else [("decode, prefill", told[Phase.DECODE])]:
        print(f"hidden state, {phase}: layers {text}")


def _gpu_experts(row: Row) -> str:
    """Which experts of a layer lie elsewhere, and where."""
    from kbench.rules import experts_text

    part = row.placement.gpu_experts
    if part is None:
        return ""
    size = format_bytes(row.gpu_experts_bytes)
    return f"{experts_text(part.experts)} on {part.device} {part.op}, {size} of the weights"


def _rule(row: Row) -> str:
    """Which line of the file placed a row."""
    told = [] if row.line is None else [f"line {row.line}"]
    if row.map_line is not None:
        told.append(f"transfer_map, line {row.map_line}")
    rule = "; ".join(told) or "default"
    return f"{rule} (below {row.above})" if row.above else rule


def _print_rows(rows: list[Row]) -> None:
    from rich.table import Table
    from rich.text import Text

    lines = []
    for row in rows:
        p = row.placement
        lines.append(
            {
                "module": row.module or "(root)",
                "rule": _rule(row),
                "operator": row.operator.rpartition(".")[2],
                "decode": f"{p.generate_device} {p.generate_op}",
                "prefill": f"{p.prefill_device} {p.prefill_op}",
                "gpu experts": _gpu_experts(row),
                "out": "" if p.out_device is None else str(p.out_device),
                "threads": _threads(p),
                "weights": format_bytes(row.n_bytes) if row.n_bytes else "",
            }
        )
    # Long names need the room: phases that agree everywhere share a column, and empty columns go.
    alike = all(line["decode"] == line["prefill"] for line in lines)
    names = [name for name in lines[0] if any(line[name] for line in lines) and not (alike and name == "prefill")]
    table = Table(box=None, pad_edge=False)
    for name in names:
        title = "decode, prefill" if alike and name == "decode" else name
        table.add_column(title, overflow="fold", justify="right" if name == "weights" else "left")
    for line in lines:
        table.add_row(*(Text(shown(line[name])) for name in names))  # names from the file are no markup
    stdout_console().print(table)
    _print_totals(rows, alike)


def _print_totals(rows: Sequence[Row], alike: bool) -> None:
    """The weights on each device; once where phases are alike."""
    from kbench.rules import weights_by_device

    totals = weights_by_device(rows)
    for phase, by_device in totals.items():
        told = ", ".join(f"{format_bytes(n_bytes)} on {device}" for device, n_bytes in sorted(by_device.items()))
        print(f"{'decode, prefill' if alike else phase}: {told or 'no weights'}")
        if alike:
            break
