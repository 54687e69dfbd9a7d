"""`kbench rules export`: the command that runs a rule file's placement in another tool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kbench.core import KV_TYPES, UserError, check_kv, write_whole

from .output import print_json, shown

if TYPE_CHECKING:
    from kbench.model import ModelDescriptor
    from kbench.rules import Export, Serving

_RULES = typer.Argument(help="The rule file (YAML).")
_OUTPUT = typer.Option(
    None, "--output", "-o", help="Where to write it: a shell script; for ktransformers its rule file."
)
_TRUST = typer.Option([], "--trust", help="A package whose operators the rules may name; may be repeated.")
_TOOLS = "ktransformers, llama.cpp, ik_llama.cpp or sglang-kt"


def export(
    path: Path = _RULES,
    to: str = typer.Option(..., "--to", help=f"{_TOOLS}."),
    model: str = typer.Option(..., "--model", "-m", help="A .gguf file, a config.json, or an embedded model."),
    checkpoint: str = typer.Option(
        "MODEL_FOLDER", "--checkpoint", help="Folder of the model's Hugging Face files, for tools that read it."
    ),
    context: int | None = typer.Option(
        None, "--context", "--ctx", min=1, help="Tokens of the cache. Default: those of the rules, else up to 4096."
    ),
    batch: int | None = typer.Option(None, "--batch", min=1, help="Sequences at once. Default: those of the rules."),
    chunk: int | None = typer.Option(
        None, "--chunk", min=1, help="Tokens of a prefill step. Default: those of the rules, else kbench's."
    ),
    kv: str | None = typer.Option(
        None, "--kv", "--kv-type", help="Type of the cache: f16, bf16, q8_0 or f32. Default: the rules', else f16."
    ),
    output: Path | None = _OUTPUT,
    trust: list[str] = _TRUST,
    json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Say what a rule file does in another tool's words: a whole command line, with what it cannot say in comments.

    Example: kbench rules export my.yaml --model deepseek-v2-chat --to llama.cpp
    """
    from kbench.model import build_tree, load_descriptor
    from kbench.rules import assign, load_rules
    from kbench.rules import export as export_rules

    if kv is not None:
        check_kv(kv, where="--kv")
    if output is not None and output.is_dir():
        raise UserError("a directory", where=str(output), accepted="-o FILE")
    rules = load_rules(path, trust=tuple(trust))
    descriptor, gguf = load_descriptor(model)
    # Other tools find the parts of a model by the first.
    opened = str(gguf.path) if gguf is not None and len(gguf.paths) > 1 else model
    tree = build_tree(descriptor)
    serving = _serving(opened, descriptor, rules.provenance, checkpoint, context, batch, chunk, kv, output)
    found = export_rules(assign(rules, tree), tree, to, serving)
    if output is not None:
        write_whole(output, _text(found, output).encode())
    if json:
        fields = {
            "path": str(path), "model": model, "to": to, "options_of": found.options, "program": list(found.program),
            "arguments": list(found.arguments), "notes": list(found.notes), "file": found.file or None,
        }  # fmt: skip
        print_json("rules.export", 1, fields)
    elif output is None:
        print(_shown(_text(found, None)), end="")
    else:
        for note in found.comments():
            print(f"# {shown(note)}")
        print(_shown(found.command))


def _shown(text: str) -> str:
    """Whole lines, however long: they are there to be copied."""
    return "\n".join(map(shown, text.split("\n")))


def _text(found: Export, output: Path | None) -> str:
    """What is printed or written: for a tool that reads rules these, under the command that uses them."""
    comments = "".join(f"# {line}\n" for line in map(shown, found.comments()))
    if found.file:
        command = "".join(f"# {line}\n" for line in found.command.split("\n"))
        return f"{comments}{command}{found.file}"
    return f"{'#!/bin/sh' + chr(10) if output else ''}{comments}{found.command}\n"


def _serving(
    model: str,
    descriptor: ModelDescriptor,
    provenance: Mapping[str, Any],
    checkpoint: str,
    context: int | None,
    batch: int | None,
    chunk: int | None,
    kv: str | None,
    output: Path | None,
) -> Serving:
    """What the options say; where they do not, what the rules were made for; else what kbench would do."""
    from kbench.engine import DEFAULT_CHUNK, DEFAULT_CONTEXT
    from kbench.rules import Serving

    workload = provenance.get("workload")
    made_for = workload if isinstance(workload, Mapping) else {}
    made_kv = str(made_for.get("kv"))  # a provenance may be anything
    own = min(DEFAULT_CONTEXT, descriptor.context_length or DEFAULT_CONTEXT)
    return Serving(
        model=model if Path(model).suffix.lower() == ".gguf" else f"{descriptor.name}-{descriptor.quant}.gguf",
        checkpoint=checkpoint,
        context=context or _count(made_for.get("context")) or own,
        sequences=batch or _count(made_for.get("batch")) or 1,
        chunk=chunk or _count(made_for.get("chunk")) or DEFAULT_CHUNK,
        kv=kv or (made_kv if made_kv in KV_TYPES else "f16"),
        draft_layers=descriptor.draft_layers,
        rules_file=str(output) if output is not None else "ktransformers.yaml",
    )


def _count(value: object) -> int | None:
    """A positive whole number of the provenance, which may be anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else None
