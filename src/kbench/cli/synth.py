"""`kbench synth`: a GGUF of random weights with a known model's shapes and types."""

from __future__ import annotations

from pathlib import Path

import typer

from kbench.core import format_bytes

from .output import print_json, progress_bar, stdout_console

_HELP = """Write a random-weight GGUF of a known model: for benchmarks without a download.

NAME is an embedded model (kbench inspect --help lists them) or a .gguf to copy shapes of.
The file appears under its name only when it is whole. It loads in llama.cpp too, which however recognises V2-Lite by
its 26 or 27 layers: a shorter one is for kbench alone.

Example: [bold]kbench synth deepseek-v2-lite-chat -o lite.gguf --layers 2[/bold]
"""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("synth", help=_HELP)
    def _synth(
        name: str = typer.Argument(..., metavar="NAME", help="An embedded model, a config.json, or a .gguf file."),
        output: Path = typer.Option(..., "--output", "-o", help="The file to write."),  # noqa: B008 (typer's way)
        layers: int = typer.Option(None, min=1, help="Only the first layers; all without it."),
        quant: str | None = typer.Option(None, help="Quantization of an embedded model. Default: Q4_K_M."),
        seed: int = typer.Option(0, min=0, help="The same seed writes the same bytes."),
        force: bool = typer.Option(False, "--force", help="Replace a file that is there."),
        as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    ) -> None:
        from kbench.model import load_descriptor, synthesize

        descriptor, _ = load_descriptor(name, quant)
        with progress_bar() as bar:
            task = bar.add_task(f"writing {output.name} (MiB)", total=None)

            def advance(done: int, whole: int) -> None:
                bar.update(task, completed=done >> 20, total=whole >> 20)

            model = synthesize(descriptor, output, n_layers=layers, seed=seed, force=force, progress=advance)
        n_bytes = output.stat().st_size
        if as_json:
            fields = {"name": model.name, "arch": model.architecture, "quant": model.quant, "n_layers": model.n_layers}
            print_json("synth", 1, {"path": str(output), "bytes": n_bytes, "model": fields, "seed": seed})
        else:
            stdout_console().print(
                f"{output}: {format_bytes(n_bytes)}, {model.name} {model.quant}, {model.n_layers} layers, "
                f"{len(model.tensors)} tensors of random weights (seed {seed})",
                soft_wrap=True,
                markup=False,
            )
