"""The model that a command line names: a GGUF file, or one of the embedded descriptors."""

from __future__ import annotations

from pathlib import Path

from kbench.core import UserError

from .describe import describe_gguf
from .descriptor import ModelDescriptor
from .embedded import DEFAULT_QUANT, embedded, embedded_names, is_embedded, suggest_embedded
from .gguf_file import GgufFile, open_gguf


def load_descriptor(model: str, quant: str = DEFAULT_QUANT) -> tuple[ModelDescriptor, GgufFile | None]:
    """The descriptor of ``model``, and its file where it is one; ``quant`` matters to embedded models only.

    Raises:
        UserError: neither a file nor a known name (CorruptFile, Unsupported: a file that cannot be used).
    """
    path = Path(model)
    if path.suffix.lower() != ".gguf" and not path.is_file() and is_embedded(model):
        return embedded(model, quant), None
    if path.is_dir():
        raise UserError("a directory", where=model, accepted="a .gguf file, or one of " + ", ".join(embedded_names()))
    if path.suffix.lower() != ".gguf" and not path.exists():
        raise UserError(
            f"no model {model!r}",
            accepted="a .gguf file, or one of " + ", ".join(embedded_names()),
            todo=suggest_embedded(model),
        )
    gguf = open_gguf(path)
    return describe_gguf(gguf), gguf
