"""The sections of a tune's page: what stands under which heading, in which order."""

from __future__ import annotations

from collections.abc import Iterable

from kbench.core import format_bytes

from .block import Block, Section
from .block_chart import block_charts
from .chart import Chart, Fields
from .choices import FORM_HEADER, form_rows, streaming_lines
from .gains import gain_chart, thumb_chart, thumb_warning
from .memory_chart import memory_chart
from .placement_map import placement_map
from .prediction_chart import prediction_chart
from .provenance import all_cpu_modelled, modelled_words
from .roofline import rooflines
from .summary import summary
from .tables import rate
from .thread_chart import thread_chart
from .time_chart import time_chart
from .tune_report import next_command
from .vram_chart import vram_chart, what_if_rows
from .why import why_rows
from .workload import step_words

_PHASES = ("decode", "prefill")


def sections(fields: Fields) -> list[Section]:
    """Those that ``fields`` has something for."""
    found = [
        Section("summary", "Summary", _summary(fields)),
        Section("memory", "Memory", [_chart(memory_chart(fields))]),
        Section("placement", "What runs where", [_chart(placement_map(fields)), *_why(fields)]),
        Section("time", "Where the time goes", _time(fields)),
        Section("roofline", "How close to the hardware", _charts(rooflines(fields))),
        Section("vram", "More or less GPU memory", _vram(fields)),
        Section("prefill", "Cache and prefill", _prefill(fields)),
        Section("gains", "What a little more would bring", [_chart(c) for c in [gain_chart(fields)] if c]),
        Section("thumbs", "Rules of thumb", _thumbs(fields)),
        Section("threads", "Threads", _charts(c for p in _PHASES if (c := thread_chart(fields, p)))),
        Section("parameters", "Kernel parameters", _charts(block_charts(fields))),
        Section("prediction", "Predicted and measured", [_chart(prediction_chart(fields))]),
        Section("rules", "Rules", _rules(fields)),
        Section("machine", "Machine", _machine(fields)),
    ]
    return [section for section in found if section.blocks]


def _chart(chart: Chart) -> Block:
    return Block("chart", chart.title, chart)


def _charts(charts: Iterable[Chart]) -> list[Block]:
    blocks: list[Block] = []
    for chart in charts:
        blocks += [Block("heading", chart.title), _chart(chart)]
    return blocks


def _summary(fields: Fields) -> list[Block]:
    predicted, measured = fields["predicted"], fields["measured"]
    modelled = modelled_words(fields)
    rest = "" if not modelled or all_cpu_modelled(fields) else ", the rest measured"
    source = f"{modelled} modelled{rest}" if modelled else "from measured operations"

    def figure(phase: str, name: str) -> tuple[str, str, str]:
        speed = predicted[f"{phase}_tokens_per_s"]
        ran = f"measured {rate(measured[f'{phase}_tokens_per_s'])}; " if measured else ""
        return name, f"{rate(speed)} tokens/s", f"{ran}predicted, {source}"

    figures = [figure("decode", "Writing"), figure("prefill", "Reading a prompt")]
    for device, memory in fields["placement"].items():
        used, budget = format_bytes(memory["total_bytes"]), format_bytes(memory["budget_bytes"])
        figures.append((f"Memory of {device}", used, f"of {budget}"))
    blocks = [Block("figures", rows=figures)]
    blocks += [Block("paragraph", sentence) for sentence in summary(fields)]
    blocks += [Block("note", note) for note in fields["notes"]]
    if fields.get("rules_path"):
        blocks += [Block("paragraph", "Next:"), Block("code", next_command(fields), label="Command")]
    return blocks


def _why(fields: Fields) -> list[Block]:
    header, rows = why_rows(fields)
    text = (
        f"Milliseconds of {step_words(fields)} on each device. FLOP per stored element says how well a byte of "
        "fast memory is spent."
    )
    reasons = Block("table", "Why", header=header, rows=rows, words=(1, 2))
    return [Block("heading", "Why"), Block("paragraph", text), reasons]


def _time(fields: Fields) -> list[Block]:
    return _charts(time_chart(fields, phase) for phase in _PHASES if any(r["phase"] == phase for r in fields["ops"]))


def _vram(fields: Fields) -> list[Block]:
    chart = vram_chart(fields)
    if chart is None:
        return []
    header = ["a card with", "of it used", "writing, tokens/s", "reading, tokens/s", "writing, against this plan"]
    rows = what_if_rows(fields)
    more = [Block("heading", "What if"), Block("table", "Cards with other memory", header=header, rows=rows)]
    return [_chart(chart), *(more if rows else [])]


def _prefill(fields: Fields) -> list[Block]:
    rows = form_rows(fields)
    chosen = [Block("table", "Cache types and prefill steps", header=FORM_HEADER, rows=rows)] if rows else []
    return [*chosen, *(Block("paragraph", line) for line in streaming_lines(fields))]


def _thumbs(fields: Fields) -> list[Block]:
    chart = thumb_chart(fields)
    if chart is None:
        return []
    warning = thumb_warning(fields)
    return [*([Block("note", f"{warning[0].upper()}{warning[1:]}.")] if warning else []), _chart(chart)]


def _rules(fields: Fields) -> list[Block]:
    rules = fields.get("rules")
    if not rules:
        return []
    where = f" They are in {fields['rules_path']}." if fields.get("rules_path") else ""
    text = (
        "What the engine is told, with where it came from: model, machine, kbench version, budgets, workload, the "
        f"measured records that it rests on, and what is modelled.{where}"
    )
    return [Block("paragraph", text), Block("code", rules, label="Rule file")]


def _machine(fields: Fields) -> list[Block]:
    machine = fields.get("machine") or {}
    host = fields["host"] or {}
    facts = [
        ("processor", machine.get("cpu") or host.get("cpu", "")),
        ("cores", _cores(machine, host)),
        ("NUMA nodes", f"{machine['numa_nodes']:g}" if machine.get("numa_nodes") else ""),
        ("caches", ", ".join(machine.get("caches", ()))),
        ("instruction sets", " ".join(machine.get("instruction_sets", ()))),
        ("main memory", format_bytes(machine["memory_bytes"]) if machine.get("memory_bytes") else ""),
        ("GPUs here", ", ".join(machine.get("gpus", ())) or ("none" if machine else "")),
        ("GPU planned for", f"{fields['gpu']['label']} ({fields['gpu']['source']})" if fields["gpu"] else ""),
        ("system", machine.get("system", "")),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())),
        ("host id", fields["host_id"]),
    ]
    rows = [[name, value] for name, value in facts if value]
    ceilings = [
        [
            c.get("label") or (f"{c['device']}, {c['threads']:g} threads" if c.get("threads") else c["device"]),
            f"{rate(c['bandwidth_bytes_per_s'] / 1e9)} GB/s",
            _arithmetic(c),
            c["source"],
        ]
        for c in fields.get("ceilings", ())
    ]
    blocks = [Block("table", "The machine", header=["what", "found"], rows=rows, words=(1,))]
    if ceilings:
        header = ["ceiling of", "reading memory", "arithmetic", "source"]
        blocks += [Block("heading", "Ceilings"), Block("table", "Ceilings", header=header, rows=ceilings, words=(3,))]
    return blocks


def _arithmetic(ceiling: Fields) -> str:
    int8 = ceiling.get("int8_operations_per_s", 0)
    more = f", {rate(int8 / 1e9)} with 8 bits" if int8 else ""
    return f"{rate(ceiling['operations_per_s'] / 1e9)} Gop/s{more}"


def _cores(machine: Fields, host: Fields) -> str:
    if machine.get("physical_cores"):
        usable = f", {machine['usable_cpus']:g} usable" if machine.get("usable_cpus") else ""
        return f"{machine['physical_cores']:g} physical, {machine.get('logical_cpus', 0):g} logical{usable}"
    return f"{host['cores']:g}" if host else ""
