"""A GGUF file with every weight dequantised: what a peer that quantises activations computes exactly."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def in_float32(path: Path) -> Path:
    """The same model with every weight dequantised by the gguf package."""
    reader, target = gguf.GGUFReader(path), path.with_suffix(".f32.gguf")
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
