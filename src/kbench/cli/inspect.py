"""`kbench inspect`: what a model consists of and what each of its calls costs in principle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kbench.core import Phase, Work, format_bytes

from .output import print_json, stdout_console

if TYPE_CHECKING:
    from kbench.model import CallGroup, Footprint, ModelDescriptor

_HELP = """Show a model's modules, calls, bytes, FLOPs and arithmetic intensities. Nothing is measured or loaded.

MODEL is a .gguf file (of a split model any part), the config.json of a model on Hugging Face, or an embedded model:
deepseek-v2-chat, deepseek-v2-lite-chat, deepseek-v3, glm-4.5, glm-4.5-air, gpt-oss-20b, gpt-oss-120b, kimi-k2,
mixtral-8x7b, qwen3-30b-a3b, qwen3-235b-a22b, qwen3-next-80b-a3b.

Example: [bold]kbench inspect deepseek-v2-chat --phase decode --context 8192[/bold]
"""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("inspect", help=_HELP)
    def _inspect(
        model: str = typer.Argument(..., metavar="MODEL", help="A .gguf file, a config.json, or an embedded model."),
        phase: Phase = typer.Option(None, help="Only this phase; both without it."),  # noqa: B008 (typer's way)
        context: int = typer.Option(4096, min=1, help="Tokens in the cache while decoding."),
        prompt_tokens: int = typer.Option(512, min=1, help="Tokens of the prompt in prefill."),
        kv: str = typer.Option("f16", help="Type of the cache: f16, bf16, q8_0 or f32."),
        quant: str | None = typer.Option(None, help="Quantization of an embedded model. Default: Q4_K_M."),
        as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    ) -> None:
        from kbench.model import footprint, load_descriptor

        descriptor, _ = load_descriptor(model, quant)
        phases = (Phase.PREFILL, Phase.DECODE) if phase is None else (phase,)
        result = footprint(descriptor, prompt_tokens=prompt_tokens, context=context, kv=kv, phases=phases)
        if as_json:
            print_json("inspect", 1, _fields(result))
        else:
            _show(result, stdout_console())


def _show(result: Footprint, console: Console) -> None:
    console.print(_summary(result))
    console.print(_classes(result))
    for phase, groups in result.phases.items():
        console.print(_calls(result, phase, groups))
    console.print(_modules(result))
    console.print(
        "AI touched: FLOPs per byte read or written; weights count once per call in their own type, activations in "
        "f32, the cache once. AI resident: FLOPs per element stored, be it a weight or a cached one; it ranks modules "
        "for scarce memory. Elementwise calls store nothing.",
        style="dim",
    )


def _table(title: str, *columns: str) -> Table:
    """A table whose columns are text, or, marked with ``>``, numbers."""
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right or column == "Module")
    return table


def _summary(result: Footprint) -> Table:
    m = result.descriptor
    bits = 8 * m.n_bytes / m.n_params
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_row("model", f"[bold]{escape(m.name)}[/bold]  {m.architecture}  {escape(m.quant)}")
    table.add_row(
        "weights", f"{_big(m.n_params)} in {len(m.tensors)} tensors, {_both(m.n_bytes)}, {bits:.3f} bits each"
    )
    if m.moe is not None:
        table.add_row("active", f"{_big(result.active_params)} per token, the embedding included")
    dense = f" ({m.moe.first_dense} dense)" if m.moe is not None and m.moe.first_dense else ""
    table.add_row("shape", f"{m.n_layers} layers{dense}, hidden {m.d}, dense FFN {m.ffn}, vocabulary {m.vocab}")
    table.add_row("attention", _attention(m))
    if m.moe is not None:
        e = m.moe
        groups = f", from {e.topk_group} of {e.n_group} groups" if e.n_group > 1 else ""
        table.add_row(
            "experts", f"{e.top_k} of {e.experts} per token{groups}, {e.shared} shared, width {e.n}, {e.scoring}"
        )
    until = f" (less past the {m.window} tokens that layers with a window keep)" if m.window else ""
    table.add_row(
        "cache",
        f"{result.kv_bytes_per_token:,} bytes a token in {result.kv}{until}: "
        f"{format_bytes(result.cached_bytes)} for {max(result.contexts.values())} tokens",
    )
    table.add_row("read", f"{_both(result.read_bytes_per_token)} of weights per decoded token")
    for item in result.intensities:
        exact = "" if item.nominal == item.exact else f", {item.exact:.4g} with the elements that carry positions"
        table.add_row("intensity", f"{item.what}: {item.nominal:.4g}{exact}")
        table.add_row("", f"{item.flops_per_byte:.4g} FLOPs per byte read in bf16", style="dim")
    return table


def _attention(m: ModelDescriptor) -> str:
    if m.mla is None:
        return f"{m.heads} heads on {m.kv_heads} kv heads of {m.head_dim}"
    a = m.mla
    query = f", query rank {a.q_lora}" if a.q_lora else ""
    return f"MLA: {m.heads} heads of {a.nope} + {a.rope} on a latent of {a.kv_lora} + {a.rope}{query}"


def _classes(result: Footprint) -> Table:
    m = result.descriptor
    table = _table("Bytes by class", "Class", ">Tensors", ">Parameters", ">Bytes", ">GB", ">Share", "Types")
    for row in result.classes:
        table.add_row(
            row.kind,
            str(row.n_tensors),
            _big(row.n_params),
            f"{row.n_bytes:,}",
            f"{row.n_bytes / 1e9:.3f}",
            f"{100 * row.n_bytes / m.n_bytes:.2f} %",
            _types(row.types),
        )
    table.add_section()
    gb = f"{m.n_bytes / 1e9:.3f}"
    table.add_row("total", str(len(m.tensors)), _big(m.n_params), f"{m.n_bytes:,}", gb, "100 %", "", style="bold")
    return table


def _calls(result: Footprint, phase: Phase, groups: tuple[CallGroup, ...]) -> Table:
    from kbench.model import total_work

    tokens, context = result.tokens[phase], result.contexts[phase]
    title = f"{phase.value.capitalize()}: {tokens} token{'s' if tokens > 1 else ''}, {context} in the cache at the end"
    table = _table(title, "Module", "Call", ">Calls", ">GFLOP", ">Bytes", ">AI\ntouched", ">AI\nresident")
    whole = total_work(groups)
    for group in groups:
        table.add_row(_short(group.module), _call(group), str(group.count), *_figures(group.work))
    table.add_section()
    table.add_row("all", "", str(sum(group.count for group in groups)), *_figures(whole), style="bold")
    return table


def _modules(result: Footprint) -> Table:
    table = _table("Modules (* = every layer)", "Module", "Class", ">Count", ">Bytes", "Types")
    for row in result.modules:
        size = format_bytes(row.n_bytes) if row.n_bytes else ""
        table.add_row(row.module, row.class_name, str(row.count), size, _types(row.types))
    return table


def _short(module: str) -> str:
    return "(layer)" if module == "layers.*" else module.removeprefix("layers.*.")


def _call(group: CallGroup) -> str:
    """The op and the shapes that matter; the table has no room for every parameter's name."""
    p = group.problem
    shapes = {
        "embedding": lambda: f"{p['quant']} {p['vocab']}x{p['d']}",
        "rms_norm": lambda: p["d"] if p["rows"] == "1" else f"{p['rows']} x {p['d']}",
        "linear": lambda: f"{p['quant']} {p['n']}x{p['k']}",
        "head_linear": lambda: f"{p['quant']} {p['heads']} x {p['n']}x{p['k']}",
        "rope": lambda: f"{p['heads']} x {p['d']}",
        "attention": lambda: f"{p['heads']}/{p['kv_heads']} x {p['d']}",
        "mla_attention": lambda: f"{p['heads']}x({p['kv_lora']}+{p['rope']})",
        "mla_decompressed": lambda: f"{p['heads']}x({p['nope']}+{p['rope']}, {p['v']}) of {p['kv_lora']}",
        "moe_router": lambda: f"{p['quant']} {p['top_k']} of {p['experts']}",
        "moe_experts": lambda: (
            f"{p['top_k']} of {p['experts']} x {p['n']}x{p['k']} {p['quant_gate']} {p['quant_up']} {p['quant_down']}"
        ),
        "silu_mul": lambda: p["n"],
    }
    shape = shapes.get(group.op, lambda: p["d"])()
    return f"{group.op} [dim]{escape(shape)}[/dim]"


def _figures(work: Work) -> tuple[str, str, str, str]:
    gflop = f"{work.flops / 1e9:.3g}" if work.flops < 1e12 else f"{work.flops / 1e9:,.0f}"
    resident = _ratio(work.ai_resident) if work.elements_resident else "-"
    return gflop, format_bytes(work.bytes_touched), _ratio(work.ai_touched), resident


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.4g}"


def _types(types: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in types.items())


def _big(count: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3f} {unit}"
    return str(count)


def _both(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.3f} GB ({format_bytes(n_bytes)})"


def _fields(result: Footprint) -> dict[str, Any]:
    m = result.descriptor
    return {
        "model": {
            "name": m.name,
            "arch": m.architecture,
            "quant": m.quant,
            "params": m.n_params,
            "active_params": result.active_params,
            "bytes": m.n_bytes,
            "n_tensors": len(m.tensors),
            "n_layers": m.n_layers,
            "d": m.d,
            "vocab": m.vocab,
            "context_length": m.context_length,
        },
        "kv": result.kv,
        "kv_bytes_per_token": result.kv_bytes_per_token,
        "cached_bytes": result.cached_bytes,
        "read_bytes_per_token": result.read_bytes_per_token,
        "intensities": [
            {"what": i.what, "nominal": i.nominal, "exact": i.exact, "flops_per_byte_bf16": i.flops_per_byte}
            for i in result.intensities
        ],
        "classes": [
            {"class": c.kind, "n_tensors": c.n_tensors, "params": c.n_params, "bytes": c.n_bytes, "types": c.types}
            for c in result.classes
        ],
        "phases": {
            phase.value: {
                "tokens": result.tokens[phase],
                "context": result.contexts[phase],
                "calls": [_call_fields(group) for group in groups],
            }
            for phase, groups in result.phases.items()
        },
        "modules": [
            {"module": g.module, "class": g.class_name, "count": g.count, "bytes": g.n_bytes, "types": g.types}
            for g in result.modules
        ],
    }


def _call_fields(group: CallGroup) -> dict[str, Any]:
    work = group.work
    return {
        "module": group.module,
        "op": group.op,
        "count": group.count,
        "problem": dict(group.problem),
        "flops": work.flops,
        "bytes_touched": work.bytes_touched,
        "elements_resident": work.elements_resident,
        "ai_touched": work.ai_touched,
        "ai_resident": work.ai_resident,
    }
