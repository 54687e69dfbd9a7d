"""Writes a GGUF of random weights with the shapes and types of a real model: no download, any size, little memory."""

from __future__ import annotations

import dataclasses
import glob
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import psutil
from gguf import GGUFWriter
from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType

from kbench.core import TensorInfo, UserError, format_bytes

from .descriptor import ModelDescriptor
from .embedded import with_quant
from .quantizer import BASE_TYPES
from .random_blocks import Bytes, random_bytes
from .synth_metadata import write_metadata

# Header and vocabulary of the largest embedded model are some 5 MiB.
_HEADER_ROOM_BYTES = 64 << 20

Progress = Callable[[int, int], None]


def first_layers(descriptor: ModelDescriptor, n_layers: int) -> ModelDescriptor:
    """``descriptor`` cut to its first ``n_layers``; types are chosen anew, as the quantizer would for such a model.

    Raises:
        UserError: fewer than one layer, or more than there are.
    """
    if not 1 <= n_layers <= descriptor.n_layers:
        raise UserError(
            f"{n_layers} layers", where=descriptor.name, accepted=f"1 to {descriptor.n_layers}", todo="see --layers"
        )
    if n_layers == descriptor.n_layers:
        return descriptor
    short = dataclasses.replace(descriptor, n_layers=n_layers)
    if descriptor.quant in BASE_TYPES:
        return with_quant(short, descriptor.quant)
    kept = (t for t in descriptor.tensors if not t.name.startswith("blk.") or int(t.name.split(".")[1]) < n_layers)
    return dataclasses.replace(short, tensors=tuple(kept))


def synthesize(
    descriptor: ModelDescriptor,
    path: Path | str,
    *,
    n_layers: int | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> ModelDescriptor:
    """Writes ``descriptor``'s model with random weights to ``path`` and returns what was written.

    Weights have mean zero and spread ``1 / sqrt(k)``, norms are about one, so that activations stay of order one. The
    same seed gives the same bytes. The file appears under its name when it is whole; memory stays below 100 MiB.

    Args:
        n_layers: write the first layers only.
        force: replace a file that is there.
        progress: called with bytes written and bytes in all.

    Raises:
        UserError: the file exists, its folder does not, or the disk is too full.
    """
    path = Path(path)
    model = first_layers(descriptor, n_layers if n_layers is not None else descriptor.n_layers)
    if path.exists() and not path.is_file():
        raise UserError("not a regular file", where=str(path), accepted="a name for the .gguf file")
    if path.exists() and not force:
        raise UserError("this file exists", where=str(path), todo="choose another name, or add --force")
    if not path.parent.is_dir():
        raise UserError("no such folder", where=str(path.parent), todo="make it first")
    free = shutil.disk_usage(path.parent).free
    if free < model.n_bytes + _HEADER_ROOM_BYTES:
        raise UserError(
            f"the file needs {format_bytes(model.n_bytes)}, the disk has {format_bytes(free)} free",
            where=str(path),
            todo="write fewer layers with --layers, or to another disk",
        )
    _remove_stale(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _write(model, partial, seed, progress)
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
    finally:
        partial.unlink(missing_ok=True)
    return model


def _remove_stale(path: Path) -> None:
    """Removes what a killed run has left of the same file: partial files are named after their process."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        pid = partial.suffixes[-2].lstrip(".")
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            partial.unlink(missing_ok=True)


def _write(model: ModelDescriptor, path: Path, seed: int, progress: Progress | None) -> None:
    writer = GGUFWriter(path, model.architecture)
    write_metadata(writer, model)
    for tensor in model.tensors:
        kind = GGMLQuantizationType[tensor.quant]
        # The writer wants numpy's order, slowest dimension first; float32 says that the shape counts elements.
        writer.add_tensor_info(tensor.name, tensor.shape[::-1], np.dtype(np.float32), tensor.n_bytes, kind)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        _write_data(writer.fout[0], model, seed, progress)
        writer.flush()
        os.fsync(writer.fout[0].fileno())
    finally:
        writer.close()


def _write_data(file: BinaryIO, model: ModelDescriptor, seed: int, progress: Progress | None) -> None:
    done, whole = 0, model.n_bytes
    for tensor in model.tensors:
        file.write(b"\0" * (-file.tell() % GGUF_DEFAULT_ALIGNMENT))
        for chunk in tensor_chunks(tensor, seed):
            file.write(chunk.data)
            done += chunk.size
            if progress is not None:
                progress(done, whole)
    file.write(b"\0" * (-file.tell() % GGUF_DEFAULT_ALIGNMENT))


def tensor_chunks(tensor: TensorInfo, seed: int) -> Iterator[Bytes]:
    """The bytes of ``tensor`` in chunks; they depend on its name, shape, type and ``seed`` alone."""
    rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    if len(tensor.shape) > 1:
        yield from random_bytes(tensor.quant, tensor.n_elements, tensor.shape[0] ** -0.5, rng)
        return
    # One dimension: norms and divisors of frequencies about 1, biases about 0.
    centre = 0.0 if tensor.name.endswith(".bias") else 1.0
    spread = 0.0 if tensor.name == "rope_freqs.weight" else 0.05
    values = centre + spread * rng.standard_normal(tensor.n_elements)
    yield values.astype("<f4").view(np.uint8)
