"""The report of ``kbench tune``: what was asked, what each part costs where, where it went, and what comes of it.

Reads the fields of the JSON object ``kbench.tune/1`` and nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kbench.core import format_bytes
from kbench.results import tune_result_path

from .checked import check_line
from .choices import run_options, streaming_lines
from .provenance import all_cpu_modelled, cpu_modelled, modelled_words
from .tables import bar, listed, milliseconds, percent, rate, table
from .tune_tables import form_table, gain_lines, thumb_table, thumb_warning, what_if_table, why_table
from .unit_lines import UnitLine, unit_lines
from .workload import goal_words, sequences, step_words

Fields = Mapping[str, Any]

# What takes memory on a device, as people call it; the margin is none of it.
_MEMORY_LINES = {
    "weights": "weights_bytes", "cache": "kv_bytes", "workspace": "workspace_bytes", "runtime": "runtime_bytes",
    "one layer brought in": "swapped_bytes", "pinned buffers": "pinned_bytes", "while loading": "loading_bytes",
    "left free": "margin_bytes",
}  # fmt: skip
_NAMES = {"stream": "norms, router, residual"}


def print_tune_report(console: Console, fields: Fields, page: Path | None = None) -> None:
    """Prints everything that a person wants to know, for a terminal of 100 columns; ``page`` is where its page lies."""
    more = [made for made in (form_table(fields), what_if_table(fields), thumb_table(fields)) if made is not None]
    console.print(Group(_header(fields), Text(), _operators(fields), Text(), why_table(fields), Text()))
    console.print(Group(_placement(fields), _speeds(fields), *more))
    for line in _closing(fields, page):
        console.print(line, soft_wrap=True)  # a command must stay one line, to be copied


def _header(fields: Fields) -> Text:
    model, work = fields["model"], fields["workload"]
    text = Text()
    text.append(f"{model['name']}", style="bold")
    text.append(
        f"  {model['quant']} · {model['arch']} · {model['params'] / 1e9:.3g} B parameters · "
        f"{format_bytes(model['bytes'])}\n"
    )
    text.append(f"host      {fields['host']['cpu']}, {_count(fields['host']['cores'], 'core')} ({fields['host_id']})\n")
    for device, gpu in fields["gpus"].items():
        text.append(f"{device:<9} {gpu['label']} ")
        text.append("modelled from its data sheet, not measured\n", style="yellow")
    budgets = fields["budgets"]
    vram = f"{format_bytes(budgets['vram_bytes'])} VRAM + " if budgets["vram_bytes"] else ""
    cache = f" ({work['kv']})" if "kv" in work else ""
    text.append(
        f"budgets   {vram}{format_bytes(budgets['dram_bytes'])} DRAM, {work['context']} tokens of context{cache}\n"
    )
    text.append(f"workload  {work['prompt_tokens']} prompt tokens, then {work['gen_tokens']} generated")
    if (n := sequences(fields)) > 1:
        text.append(f", {n:g} sequences at once")
    if "chunk" in work:
        text.append(f"; {work['chunk']} tokens a prefill step")
    if goal := goal_words(fields):
        text.append(f"; fastest{goal}")
    return text


def _operators(fields: Fields) -> Table:
    """Per unit, and below it per operator that has weights or a cache."""
    devices = list(fields["placement"])
    titles = [f"{device}*" if device != "cpu" or cpu_modelled(fields) else device for device in devices]
    made = table(
        f"Operators: milliseconds of {step_words(fields)} on each device",
        ("module", "left"), ("calls", "right"), ("size", "right"), ("FLOP/el.", "right"),
        *((title, "right") for title in titles),
        ("decode", "right"), ("prefill", "right"), ("on", "left"),
        caption=_footnotes(fields),
    )  # fmt: skip
    lines = unit_lines(fields["ops"])
    totals: dict[str, float] = {}
    for unit, _ in lines:
        for phase, seconds in unit.phases.items():
            totals[phase] = totals.get(phase, 0.0) + seconds
    for unit, parts in lines:
        made.add_row(*_cells(unit, devices, totals, _NAMES.get(unit.name, unit.name)), style="bold" if parts else "")
        for part in parts:
            made.add_row(*_cells(part, devices, totals, f"  {part.name}"))
    return made


def _cells(line: UnitLine, devices: Sequence[str], totals: Mapping[str, float], name: str) -> list[RenderableType]:
    cells: list[RenderableType] = [
        name,
        str(line.n_calls),
        format_bytes(line.n_bytes) if line.n_bytes else "",
        rate(line.flops / line.elements) if line.elements and line.flops else "",
    ]
    for device in devices:
        seconds = line.decode.get(device)
        text = milliseconds(seconds) if device in line.decode else ""
        # A unit that is split over devices (other layers, other place) has no one price.
        chosen = device in line.placed and len(line.placed) == 1
        cells.append(Text(text, style="green" if chosen else "dim"))
    for phase in ("decode", "prefill"):
        total = totals.get(phase, 0.0)
        cells.append(percent(line.phases.get(phase, 0.0) / total) if total else "")
    cells.append("both" if len(line.placed) > 1 else next(iter(line.placed), ""))
    return cells


def _footnotes(fields: Fields) -> str:
    notes = ["FLOP/el.: FLOPs per stored element in decode; the more, the better its memory is spent on a fast device."]
    notes.append("decode, prefill: share of the sum over all operators; what overlaps counts in full.")
    on_cpu = cpu_modelled(fields)
    if fields["gpus"] or on_cpu:
        notes.append(
            "* modelled" if not on_cpu or all_cpu_modelled(fields) else f"* modelled; on cpu: {listed(on_cpu)}"
        )
    reasons = {
        f"{row['op']} on {a['device']}: {a['reason']}"
        for row in fields["ops"]
        for a in row["alternatives"]
        if "reason" in a
    }
    return "\n".join([*notes, *(f"– {reason}" for reason in sorted(reasons))])


def _placement(fields: Fields) -> Table:
    """A column for each device, a line for each thing that takes memory there."""
    devices = fields["placement"]
    made = table("Placement", ("", "left"), *((device, "right") for device in devices))
    for name, key in _MEMORY_LINES.items():
        sizes = [memory.get(key, 0) for memory in devices.values()]
        if any(sizes) or key in ("weights_bytes", "kv_bytes"):
            made.add_row(name, *(format_bytes(size) if size else "" for size in sizes))
    made.add_row("total", *(format_bytes(memory["total_bytes"]) for memory in devices.values()), style="bold")
    made.add_row("budget", *(format_bytes(memory["budget_bytes"]) for memory in devices.values()))
    made.add_row("", *(_used(memory) for memory in devices.values()))
    return made


def _used(memory: Mapping[str, float]) -> Text:
    share = memory["total_bytes"] / memory["budget_bytes"] if memory["budget_bytes"] else 0.0
    filled = bar(share, width=12)
    filled.append(f" {share * 100:.0f} %", style="")
    return filled


def _speeds(fields: Fields) -> Table:
    predicted, measured = fields["predicted"], fields["measured"]
    made = table(
        "Tokens per second",
        ("", "left"), ("decode", "right"), ("", "left"), ("prefill", "right"), ("", "left"),
    )  # fmt: skip
    modelled = modelled_words(fields)
    label = f"predicted ({modelled} modelled)" if modelled else "predicted"
    made.add_row(
        label,
        Text(rate(predicted["decode_tokens_per_s"]), style="bold"),
        _interval(predicted["decode_interval"]),
        Text(rate(predicted["prefill_tokens_per_s"]), style="bold"),
        _interval(predicted["prefill_interval"]),
    )
    if measured:
        made.add_row(
            "measured",
            Text(rate(measured["decode_tokens_per_s"]), style="bold"),
            _interval(measured["decode_interval"]),
            Text(rate(measured["prefill_tokens_per_s"]), style="bold"),
            "",
        )
        error = fields["error"]
        made.add_row("error", f"{error['decode'] * 100:+.1f} %", "", f"{error['prefill'] * 100:+.1f} %", "")
    return made


def _interval(bounds: Sequence[float]) -> Text:
    return Text(f"{rate(bounds[0])} to {rate(bounds[1])}", style="dim") if bounds else Text()


def _closing(fields: Fields, page: Path | None) -> list[Text]:
    solver = fields["solver"]
    lines = []
    text = Text(f"placement {solver['status']}", style="green" if solver["status"] == "optimal" else "yellow")
    text.append(f" (gap {solver['gap']:.2g})", style="")
    if solver["greedy_seconds"] is not None:
        slower = solver["greedy_seconds"] / solver["seconds"] - 1
        text.append(f"; greedy by seconds saved per byte: {percent(max(0.0, slower))} slower", style="dim")
    lines.append(text)
    if checked := check_line(fields):
        lines.append(Text(checked, style="dim"))
    lines += [Text(line, style="dim") for line in (*gain_lines(fields), *streaming_lines(fields))]
    if warning := thumb_warning(fields):
        lines.append(Text(warning, style="yellow"))
    packing = fields["packing"]
    if packing["seconds"]:
        stored, seconds = packing["stored_bytes"], packing["seconds"]
        speed = f"{format_bytes(stored)} in about {seconds:.3g} s ({stored / seconds / 1e9:.2f} GB/s)"
        lines.append(Text(f"loading packs {speed} to {format_bytes(packing['packed_bytes'])}", style="dim"))
    lines += [Text(note, style="yellow") for note in fields["notes"]]
    if fields["measured"] is None and fields["measured_reason"]:
        lines.append(Text(f"not measured: {fields['measured_reason']}", style="dim"))
    if fields["rules_path"]:
        lines.append(Text.assemble("rules     ", (fields["rules_path"], "bold")))
        stored = shlex.quote(str(tune_result_path(Path(fields["rules_path"]))))
        command = f"kbench report {stored} -o report.html"
        lines.append(Text.assemble("report    ", (str(page), "bold") if page else (command, "bold cyan")))
        lines.append(Text.assemble("next      ", (next_command(fields), "bold cyan")))
    lines.append(Text(f"done in {fields['elapsed_s']:.1f} s", style="dim"))
    return lines


def next_command(fields: Fields) -> str:
    """What to do with the rules: run them where that was tried, else look at them."""
    path = shlex.quote(fields["rules_path"])
    if fields["measured"]:
        model, more = shlex.quote(fields["model"]["source"]), run_options(fields)
        return f"kbench generate {model} --rules {path}{more} --prompt 'Hello'"
    return f"kbench rules explain {path} --model {shlex.quote(fields['model']['source'])}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
