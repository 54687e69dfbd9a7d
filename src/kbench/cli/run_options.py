"""The options that `generate` and `chat` share, and what they come to: a session and how to sample."""

from __future__ import annotations

import atexit
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kbench.core import AUTO, CPU, Placement, UserError, format_bytes

from .limits import usable_threads
from .output import plural, progress_bar, shown

if TYPE_CHECKING:
    from kbench.engine import Generation, SamplingParams, Session
    from kbench.model import ModelDescriptor

# Tensors that are named of those that were rounded anew.
_MOST_OFF = 3

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A .gguf file.")]
Rules = Annotated[Path | None, typer.Option(help="Rules that place the modules; kbench tune writes them.")]
Trust = Annotated[
    list[str] | None,
    typer.Option(metavar="PACKAGE", help="Run operators of this package where the rules name them; repeatable."),
]
Alias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DEVICE=DEVICE",
        help="Rehearse rules for a device that is not here: cuda:0=cpu. Everything moves as it would; repeatable.",
    ),
]
Implementation = Annotated[
    str, typer.Option(help="For modules that no rule places: auto, cpu.avx2, torch, reference, ...")
]
Block = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A kernel parameter where no rule says it (docs/kernels.md); repeatable."),
]
Context = Annotated[int | None, typer.Option(help="Tokens that the cache holds. Default: the model's, up to 4096.")]
Overflow = Annotated[
    str, typer.Option(help="After --context tokens: stop, or ring (the oldest leave, a token sees the last ones).")
]
Kv = Annotated[str, typer.Option(help="Type of the cache: f16, bf16, q8_0 or f32.")]
Chunk = Annotated[int | None, typer.Option(min=1, help="Tokens of a prefill step, at most. Default: 256.")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        callback=usable_threads,
        help="Threads. Default: one per physical core, within a container's CPU quota.",
    ),
]
PrefillThreads = Annotated[
    int | None, typer.Option(min=1, callback=usable_threads, help="Threads of prefill. Default: as --threads.")
]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token every time.")]
TopK = Annotated[int, typer.Option(help="Draw among the k likeliest (0: all).")]
TopP = Annotated[float, typer.Option(help="Draw among the likeliest that reach this probability (1: all).")]
MinP = Annotated[float, typer.Option(help="Drop what is less likely than this share of the likeliest (0: none).")]
Penalty = Annotated[float, typer.Option("--repetition-penalty", help="Above 1: say less again (1: off).")]
Seed = Annotated[int | None, typer.Option(help="The same seed draws the same tokens. Default: a new one.")]


def load_session(
    model: str,
    rules: Path | None,
    implementation: str,
    context: int | None,
    kv: str,
    threads: int | None,
    prefill_threads: int | None = None,
    block: Sequence[str] | None = None,
    trust: Sequence[str] | None = None,
    alias: Sequence[str] | None = None,
    overflow: str = "stop",
    sequences: int = 1,
    chunk: int | None = None,
) -> Session:
    """The session, with a progress bar while weights are packed."""
    from kbench.engine import DEFAULT_CHUNK, LoadOptions, join_hosts, load_model, parse_alias, serve_host
    from kbench.kernels import block_errors
    from kbench.kernels import implementation as known
    from kbench.rules import load_rules

    devices = parse_alias(alias or ())
    default = None
    if implementation != AUTO or block:
        if implementation != AUTO:
            known(implementation)  # a typo is found before anything is read
        chosen = dict(_setting(text) for text in block or ())
        for error in block_errors(chosen, [(implementation, CPU)], "--block").values():
            raise error
        default = Placement(generate_op=implementation, prefill_op=implementation, block=chosen)
    placements = load_rules(rules, trust=tuple(trust or ())) if rules is not None else None
    with progress_bar() as bar:
        task = bar.add_task("packing weights (MiB)", total=None)

        started = time.perf_counter()

        def advance(done: int, whole: int) -> None:
            speed = done / (time.perf_counter() - started) / 1e9
            what = f"packing weights, {speed:.2f} GB/s (MiB)"
            bar.update(task, completed=done >> 20, total=whole >> 20, description=what)

        options = LoadOptions(
            default=default,
            context=context,
            kv=kv,
            threads=threads,
            prefill_threads=prefill_threads,
            progress=advance,
            alias=devices,
            overflow=overflow,
            sequences=sequences,
            chunk=chunk or DEFAULT_CHUNK,
        )
        group = join_hosts()
        if group is None or not group.host:
            if group is not None:
                atexit.register(group.close)
            session = load_model(model, placements, options, group=group)
    if group is not None and group.host:
        serve_host(model, placements, group, options)
        raise typer.Exit
    warn_of_context(session.cache.capacity, session.descriptor)
    return session


def _setting(text: str) -> tuple[str, int | str]:
    """``NAME=VALUE`` as a kernel parameter; a number, or a choice by its name."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise UserError(f"{text!r}", where="--block", accepted="NAME=VALUE, e.g. activation_planes=1")
    return name, int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else value


def sampling(
    temperature: float, top_k: int, top_p: float, min_p: float, penalty: float, seed: int | None
) -> SamplingParams:
    from kbench.engine import SamplingParams

    return SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty, seed=seed
    )


def implementations_used(session: Session) -> str:
    """The implementations that decode runs on, e.g. ``cpu.avx2``."""
    return ", ".join(dict.fromkeys(call.implementation for call in session.decode_calls if call.op != "transfer"))


def load_line(session: Session) -> str:
    """One line on what was loaded, for stderr."""
    r, m = session.report, session.descriptor
    speed = r.file_bytes / r.seconds / 1e9 if r.seconds else 0.0
    prefill = f" ({session.prefill_threads} in prefill)" if session.prefill_threads != session.threads else ""
    return (
        f"{shown(m.name)} {m.quant}: {format_bytes(r.file_bytes)} packed in {r.seconds:.1f} s ({speed:.2f} GB/s) "
        f"to {format_bytes(r.weight_bytes)}, "
        f"cache {format_bytes(r.kv_bytes)} for {plural(session.cache.capacity, 'token')}, "
        f"{plural(session.threads, 'thread')}{prefill}, {implementations_used(session)}"
    )


def rounding_lines(session: Session) -> list[str]:
    """What was rounded anew to 4 bits while loading, and which tensors suffered most; empty where nothing was."""
    rounded = session.report.rounded
    if not rounded:
        return []
    groups = ", ".join(str(group) for group in sorted({error.group for error in rounded}))
    ranked = sorted(rounded, key=lambda error: -error.relative_rms)
    lines = [
        f"{plural(len(rounded), 'tensor')} rounded to int4 in groups of {groups}: errors are "
        f"{ranked[-1].relative_rms:.1%} to {ranked[0].relative_rms:.1%} of the weights (root mean squares); most off:"
    ]
    lines += [
        f"  {shown(error.tensor)} ({error.quant}) {error.relative_rms:.1%}, at most {error.largest:.1%} of its largest"
        for error in ranked[:_MOST_OFF]
    ]
    return lines


def rounded_plain(session: Session) -> list[dict[str, object]]:
    """Every tensor that was rounded anew, for ``--json``."""
    return [dataclasses.asdict(error) for error in session.report.rounded]


def device_lines(session: Session) -> list[str]:
    """What moved between devices since loading, and what stood in for kernels of a device that is not here."""
    lines = [
        f"{shown(name)} needs a GPU: {stand_in} stood in for it" for name, stand_in in session.report.stand_ins.items()
    ]
    for entry in session.traffic.plain():
        moved = f"{plural(int(str(entry['calls'])), 'time')}, {format_bytes(int(str(entry['bytes'])))}"
        ends = f"{entry['src']} -> {entry['dst']}"
        name, why = session.report.carriers.get(ends, ("", ""))
        by = f", by {name}" + (f": {why}" if why else "") if name else ""
        lines.append(f"moved {entry['what']} {ends} {moved}{by}")
    return lines


def speed_line(result: Generation) -> str:
    """One line of counts and speeds, for stderr."""
    prefilled = result.prompt_tokens - result.reused_tokens
    return (
        f"prefill {_count(prefilled, result.prefill_tokens_per_s)} · "
        f"decode {_count(result.decode_tokens, result.decode_tokens_per_s)} · "
        f"stopped by {result.stop} · seed {result.seed}"
    )


def _count(n_tokens: int, tokens_per_s: float) -> str:
    """Of no tokens there is no rate."""
    return plural(n_tokens, "token") + (f", {tokens_per_s:.1f} tokens/s" if n_tokens else "")


def warn_of_context(context: int, descriptor: ModelDescriptor) -> None:
    """Tells on stderr of a context that the model was not trained for: it runs, and answers badly."""
    if 0 < descriptor.context_length < context:
        print(
            f"kbench: a context of {context} tokens; {shown(descriptor.name)} was trained for "
            f"{descriptor.context_length}: what it says beyond them may make no sense",
            file=sys.stderr,
        )
