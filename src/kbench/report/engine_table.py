"""Engine cases in a terminal: a few lines each, what a user waits for first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from kbench.core import format_bytes
from kbench.results import Record

Shown = Callable[[str], str]


def print_engine_cases(console: Console, records: Sequence[Record], shown: Shown) -> None:
    """Prints the records of ``run_engine_cases``, those of a case under its parameters.

    ``shown`` makes text from files safe for a terminal.
    """
    last = ""
    for record in records:
        case = record.key.partition("(")[2].rstrip(")")
        if case != last:
            console.print(Text(shown(case), style="bold"), soft_wrap=True)
            last = case
        if record.median is None:
            console.print(Text(f"  {record.status}: {shown(record.reason)}", style="yellow"), soft_wrap=True)
            continue
        for line in _lines(record):
            console.print(Text(f"  {shown(line)}"), soft_wrap=True)


def _lines(record: Record) -> list[str]:
    assert record.median is not None
    said = record.extra["engine"]
    if record.op == "load":
        vram = said["peak_vram_bytes"]
        memory = f"peak RSS {format_bytes(int(said['peak_rss_bytes']))}"
        memory += f", peak VRAM {format_bytes(int(vram))}" if vram is not None else ""
        return [
            _line("ran on", _realised(said["realised"])),
            *(_line("", text) for text in said["replaced"]),
            _line("memory", memory),
            _line("load", seconds(record.median)),
        ]
    if record.op == "first_run":
        prompt = seconds(said["first_prefill_seconds"])
        return [_line("first run", f"{seconds(record.median)}, of it {prompt} for the prompt")]
    rate = f"{said['tokens_per_s']:.4g} tokens/s"
    if record.op == "prefill":
        what = f"{seconds(record.median)} to the first token · {rate} · {said['flops_per_s'] / 1e9:.4g} GFLOP/s"
        return [_line("prefill", what + _share(said, "int8 peak"))]
    what = f"{rate} · {said['bytes_per_s'] / 1e9:.3g} GB/s" + _share(said, "read bandwidth")
    return [_line("decode", what), _line("", " · ".join(map(_percentile, said["percentiles"].items())))]


def _line(name: str, text: str) -> str:
    return f"{name:<10}{text}"


def _share(said: Mapping[str, Any], roof: str) -> str:
    share = said["share_of_roof"]
    return "" if share is None else f", {share:.0%} of this machine's {roof}"


def _percentile(item: tuple[str, Mapping[str, Any]]) -> str:
    name, said = item
    if said["seconds"] is None:
        return f"{name} takes {said['samples_needed']:g} samples, there are {said['samples']:g}"
    return f"{name} {seconds(said['seconds'])} [{said['low'] * 1e3:.3g}, {said['high'] * 1e3:.3g}]"


def _realised(said: Mapping[str, Mapping[str, int]]) -> str:
    def words(calls: Mapping[str, int]) -> str:
        return ", ".join(f"{name} ({count} calls)" for name, count in calls.items())

    texts = {phase: words(calls) for phase, calls in said.items()}
    same = len(set(texts.values())) == 1
    return next(iter(texts.values())) if same else " · ".join(f"{phase}: {text}" for phase, text in texts.items())


def seconds(value: float) -> str:
    """``12.3 ms``, or ``2.34 s`` from a second on."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
