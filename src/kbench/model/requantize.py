"""Writes a GGUF file in another simple quantization: F16, BF16, Q8_0, Q4_0 and their like, tensor by tensor.

Types are those that llama.cpp's quantizer would choose (``quantizer``), bytes those of the ``gguf`` package. That
writes no K-quants: where one would be chosen (a head in Q6_K) the tensor gets Q8_0.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, quants
from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType, Keys, LlamaFileType

from kbench.core import TensorInfo, Unsupported, UserError, format_bytes

from .describe import describe_gguf
from .gguf_file import GgufFile, GgufTensor
from .quantizer import quantize_table
from .tensor_table import TensorSpec

# What the gguf package quantises to.
LABELS = ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1")
# Weights dequantised at a time: 16 MiB of float32.
_CHUNK_WEIGHTS = 4 << 20
_HEADER_ROOM_BYTES = 64 << 20
# Keys that the new file says for itself.
_OWN = (str(Keys.General.ARCHITECTURE), str(Keys.General.FILE_TYPE), str(Keys.General.ALIGNMENT))

Progress = Callable[[int, int], None]


def requantized_types(gguf: GgufFile, label: str) -> tuple[TensorInfo, ...]:
    """The tensors of ``gguf`` with the types that its file of quantization ``label`` has.

    Raises:
        Unsupported: a label that is not one of ``LABELS``.
    """
    if label not in LABELS:
        raise Unsupported(f"quantization {label!r} is not written here", accepted=", ".join(LABELS))
    m = describe_gguf(gguf)
    specs = [TensorSpec(name, tensor.info.shape) for name, tensor in gguf.tensors.items()]
    gqa = 1 if m.mla is not None else m.heads // m.kv_heads
    experts = m.moe.experts if m.moe is not None else 0
    table = quantize_table(specs, label, n_layers=m.n_layers + m.draft_layers, gqa=gqa, experts=experts)
    return tuple(
        info if info.quant in LABELS else TensorInfo(info.name, info.shape, "Q8_0", info.kind) for info in table
    )


def requantize(gguf: GgufFile, label: str, path: Path, *, progress: Progress | None = None) -> None:
    """Writes ``gguf`` in quantization ``label`` to ``path``; the file appears under its name when it is whole.

    Args:
        progress: called with weights written and weights in all.

    Raises:
        Unsupported: a label that is not one of ``LABELS``.
        UserError: the disk is too full, or the file cannot be written.
    """
    tensors = requantized_types(gguf, label)
    n_bytes = sum(info.n_bytes for info in tensors)
    free = shutil.disk_usage(path.parent).free
    if free < n_bytes + _HEADER_ROOM_BYTES:
        found = f"the file needs {format_bytes(n_bytes)}, the disk has {format_bytes(free)} free"
        raise UserError(found, where=str(path), todo="write it to another disk")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _write(gguf, label, tensors, partial, progress)
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
    finally:
        partial.unlink(missing_ok=True)


def _write(gguf: GgufFile, label: str, tensors: tuple[TensorInfo, ...], path: Path, progress: Progress | None) -> None:
    writer = GGUFWriter(path, gguf.architecture)
    for key, value in gguf.metadata.items():
        if key not in _OWN:
            _copy(writer, key, value, gguf.types[key])
    writer.add_file_type(LlamaFileType[f"{'ALL' if label == 'F32' else 'MOSTLY'}_{label}"])
    for info in tensors:
        kind = GGMLQuantizationType[info.quant]
        writer.add_tensor_info(info.name, info.shape[::-1], np.dtype(np.float32), info.n_bytes, kind)
    done, whole = 0, sum(info.n_elements for info in tensors)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        file = writer.fout[0]
        for info in tensors:
            file.write(b"\0" * (-file.tell() % GGUF_DEFAULT_ALIGNMENT))
            for rows in _rows(gguf.tensors[info.name]):
                file.write(quants.quantize(rows, GGMLQuantizationType[info.quant]).tobytes())
                done += rows.size
                if progress is not None:
                    progress(done, whole)
        file.write(b"\0" * (-file.tell() % GGUF_DEFAULT_ALIGNMENT))
        writer.flush()
        os.fsync(file.fileno())
    finally:
        writer.close()


def _copy(writer: GGUFWriter, key: str, value: Any, kind: str) -> None:
    of = GGUFValueType[kind]
    if isinstance(value, list):
        writer.add_key_value(key, value, GGUFValueType.ARRAY, of)
    else:
        writer.add_key_value(key, value, of)


def _rows(tensor: GgufTensor) -> Iterator[npt.NDArray[np.float32]]:
    """The weights in order, some rows at a time: float32 ``[rows, row length]``."""
    width, kind = tensor.info.shape[0], GGMLQuantizationType[tensor.info.quant]
    row_bytes = tensor.info.n_bytes // (tensor.info.n_elements // width)
    step = max(1, _CHUNK_WEIGHTS // width)
    for piece in tensor.pieces:
        rows = piece.reshape(-1, row_bytes)
        for begin in range(0, len(rows), step):
            yield quants.dequantize(np.ascontiguousarray(rows[begin : begin + step]), kind).astype(np.float32)
