"""The model that a command line names: a GGUF file, a config.json, or one of the embedded descriptors."""

from __future__ import annotations

from pathlib import Path

from kbench.core import UserError

from .describe import describe_gguf
from .descriptor import ModelDescriptor
from .embedded import DEFAULT_QUANT, embedded, embedded_names, is_embedded, suggest_embedded, with_quant
from .gguf_file import GgufFile, open_gguf
from .hf_config import read_config

_CONFIG = "config.json"


def load_descriptor(
    model: str, quant: str | None = None, faults: list[UserError] | None = None
) -> tuple[ModelDescriptor, GgufFile | None]:
    """The descriptor of ``model``, and its GGUF file where it is one; to others ``quant`` gives types (None: Q4_K_M).

    ``faults``: as of ``describe_gguf``. A folder that holds a ``config.json`` stands for that.

    Raises:
        UserError: neither a file nor a known name, or ``quant`` beside a GGUF file, whose tensors have their types
            (CorruptFile, Unsupported: a file that cannot be used).
    """
    path = Path(model)
    on_disk = path.is_file() or (path / _CONFIG).is_file()
    if path.suffix.lower() != ".gguf" and not on_disk and is_embedded(model):
        return embedded(model, quant or DEFAULT_QUANT), None
    accepted = "a .gguf file, a config.json, or one of " + ", ".join(embedded_names())
    if path.is_dir():
        if not (path / _CONFIG).is_file():
            raise UserError("a directory", where=model, accepted=accepted)
        path /= _CONFIG
    if path.suffix.lower() not in (".gguf", ".json") and not path.exists():
        raise UserError(f"no model {model!r}", accepted=accepted, todo=suggest_embedded(model))
    if path.suffix.lower() == ".json":
        return with_quant(read_config(path), quant or DEFAULT_QUANT), None
    gguf = open_gguf(path)
    if quant is not None:
        accepted = "nothing for a GGUF file: its tensors have their types"
        raise UserError(f"{quant!r}", where="--quant", accepted=accepted, todo="leave --quant out")
    return describe_gguf(gguf, faults), gguf
