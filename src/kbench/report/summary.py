"""What a tune found, in words of one who wants to run a model."""

from __future__ import annotations

from kbench.core import format_bytes

from .chart import Fields
from .gains import thumb_warning
from .provenance import all_cpu_modelled, cpu_modelled, host_name
from .tables import listed, percent, rate
from .unit_lines import UnitLine, unit_lines
from .vram_chart import planned_vram
from .why import NAMES
from .workload import goal_words, sequences, step_words


def summary(fields: Fields) -> list[str]:
    """Sentences, the answer first."""
    units = [line for line, _ in unit_lines(fields["ops"])]
    parts = [
        _answer(fields),
        _waiting(fields),
        *_where(fields, units),
        *_bottleneck(fields, units),
        *_vram(fields),
        _thumbs(fields),
        _sure(fields),
    ]
    return [part for part in parts if part]


def _answer(fields: Fields) -> str:
    model, budgets, predicted = fields["model"], fields["budgets"], fields["predicted"]
    gpu = f"{format_bytes(budgets['vram_bytes'])} of GPU memory and " if budgets["vram_bytes"] else ""
    size = f"{model['params'] / 1e9:.3g} billion parameters, {format_bytes(model['bytes'])} as {model['quant']}"
    n = sequences(fields)
    together = f", {n:g} sequences together," if n > 1 else ""
    return (
        f"{model['name']} ({size}) on {host_name(fields)} with {gpu}{format_bytes(budgets['dram_bytes'])} of main "
        f"memory: the placement that is fastest{goal_words(fields)} writes about "
        f"{rate(predicted['decode_tokens_per_s'])} tokens per second{together} and reads a prompt at about "
        f"{rate(predicted['prefill_tokens_per_s'])}."
    )


def _waiting(fields: Fields) -> str:
    work, predicted = fields["workload"], fields["predicted"]
    if not predicted["decode_tokens_per_s"] or not predicted["prefill_tokens_per_s"]:
        return ""
    reading = work["prompt_tokens"] / predicted["prefill_tokens_per_s"]
    n = sequences(fields)
    writing = work["gen_tokens"] * n / predicted["decode_tokens_per_s"]  # the rate is that of all sequences
    what = "an answer" if n == 1 else f"{n:g} answers at once"
    return (
        f"A prompt of {work['prompt_tokens']:g} tokens takes about {_duration(reading)} until the first word, "
        f"{what} of {work['gen_tokens']:g} tokens about {_duration(writing)} more."
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{rate(seconds)} seconds" if seconds >= 0.095 else "a tenth of a second"
    return f"{seconds / 60:.3g} minutes" if seconds < 5400 else f"{seconds / 3600:.3g} hours"


def _where(fields: Fields, units: list[UnitLine]) -> list[str]:
    """What each device runs, with the bytes."""
    if len(fields["placement"]) < 2:
        return []
    sentences = []
    for device, memory in fields["placement"].items():
        wholly = [NAMES.get(u.name, u.name) for u in units if list(u.placed) == [device] and u.name != "transfers"]
        partly = [f"a part of {NAMES.get(u.name, u.name)}" for u in units if device in u.placed and len(u.placed) > 1]
        names = [*wholly, *(name for name in partly if "transfers" not in name)]
        held = format_bytes(memory["weights_bytes"] + memory["kv_bytes"])
        if names:
            sentences.append(f"{device} holds {held} and runs {listed(names)}.")
    return sentences


def _bottleneck(fields: Fields, units: list[UnitLine]) -> list[str]:
    total = sum(unit.phases.get("decode", 0.0) for unit in units)
    if not total:
        return []
    slowest = max(units, key=lambda unit: unit.phases.get("decode", 0.0))
    share = slowest.phases["decode"] / total
    place = listed(list(slowest.placed))
    name = NAMES.get(slowest.name, slowest.name)
    return [f"Most of the time of {step_words(fields)} goes to {name} on {place}: {percent(share)} of the sum."]


def _vram(fields: Fields) -> list[str]:
    """Whether more or less GPU memory would change anything."""
    own = planned_vram(fields)
    points = [p for p in fields.get("vram_curve", ()) if p["used_bytes"] is not None and p.get("decode_tokens_per_s")]
    mine = next((p for p in points if p["vram_bytes"] == own), None)
    if mine is None:
        return []
    speed = mine["decode_tokens_per_s"]
    enough = next(p for p in points if p["decode_tokens_per_s"] >= 0.99 * speed)
    better = next((p for p in points if p["vram_bytes"] > own and p["decode_tokens_per_s"] > 1.03 * speed), None)
    sentences = []
    if enough["vram_bytes"] < own:
        size, free = format_bytes(enough["vram_bytes"]), format_bytes(own - enough["vram_bytes"])
        sentences.append(
            f"About {size} of GPU memory would do as well: {free} stay free, for a longer context or other programs."
        )
    if better is not None:
        gain = better["decode_tokens_per_s"] / speed - 1
        sentences.append(
            f"With {format_bytes(better['vram_bytes'])} it would write {rate(better['decode_tokens_per_s'])} tokens "
            f"per second ({gain * 100:.0f} % more)."
        )
    elif (largest := max(p["vram_bytes"] for p in points)) > own:
        tried = format_bytes(largest)
        sentences.append(f"More GPU memory, up to {tried} was tried, would not make it noticeably faster.")
    return sentences


def _thumbs(fields: Fields) -> str:
    warning = thumb_warning(fields)
    return f"{warning[0].upper()}{warning[1:]}." if warning else ""


def _sure(fields: Fields) -> str:
    solver, measured, error = fields["solver"], fields["measured"], fields.get("error")
    if len(fields["placement"]) < 2:
        proven = "There is one device, and so one placement."
    elif solver["status"] == "optimal":
        proven = (
            "No other placement of these modules is faster by these prices: that is proven, among placements in which "
            "a layer uses at most one GPU, and a GiB of GPU memory is used only where it saves 0.1 % of the time."
        )
    else:
        proven = f"The solver ran out of time: another placement may be up to {percent(solver['gap'])} faster."
    if measured and error:
        how = (
            f"The model was run under these rules: it wrote {rate(measured['decode_tokens_per_s'])} and read "
            f"{rate(measured['prefill_tokens_per_s'])} tokens per second (predictions were off by "
            f"{error['decode'] * 100:+.1f} % and {error['prefill'] * 100:+.1f} %)."
        )
    else:
        gpu = fields["gpu"]
        rest = (
            f"times on the GPU are modelled from the data sheet of the {gpu['label']}"
            if gpu
            else "the model itself was not run"
        )
        how = f"{_cpu_times(fields)}; {rest}."
    return f"{proven} {how}"


def _cpu_times(fields: Fields) -> str:
    host, modelled = host_name(fields), cpu_modelled(fields)
    if not modelled:
        return f"Times on the CPU were measured on {host}"
    limits = "the memory bandwidth and arithmetic that were measured there"
    if all_cpu_modelled(fields):
        return f"Times on the CPU ({host}) are modelled from {limits}"
    return f"Times on the CPU were measured on {host}, but those of {listed(modelled)} are modelled from {limits}"
