"""Splits GGUF files with the gguf package's writer, which we did not write."""

from __future__ import annotations

from pathlib import Path

import gguf


def split_file(source: Path, max_tensors: int, target: Path | None = None) -> list[Path]:
    """Writes ``source`` again as parts of at most ``max_tensors`` tensors, under ``target``'s name; returns them."""
    target = target or source
    reader = gguf.GGUFReader(source)
    (architecture,) = (field.contents() for name, field in reader.fields.items() if name == "general.architecture")
    writer = gguf.GGUFWriter(target, architecture, split_max_tensors=max_tensors)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            element = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(target.parent.glob(f"{target.stem}-*-of-*.gguf"))
