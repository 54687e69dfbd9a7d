"""What llama.cpp and ik_llama.cpp compute for some tokens: logits, and values of their graphs while they run.

Both call back before and after each node of a graph; a tensor of the graph begins alike in both, and
functions of theirs tell its name and where its data is.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.model import first_part

Array = npt.NDArray[Any]

# Their names of a layer's output, and of the experts that its router chose.
LAYER, ROUTES = "l_out", "ffn_moe_topk"
_WANTED = re.compile(rf"({LAYER}|{ROUTES})-\d+")
_DTYPES: dict[int, type[np.generic]] = {0: np.float32, 26: np.int32}


class _Tensor(ctypes.Structure):
    """The beginning of ``ggml_tensor``: type, where it lives, elements and strides in bytes of four dimensions."""

    _fields_ = [
        ("type", ctypes.c_int32),
        ("_device", ctypes.c_int32),
        ("_buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    ]


@dataclass
class GraphRun:
    """``logits [tokens, vocab]`` and what was seen on the way, by name, ``[tokens, width]``."""

    logits: Array
    values: dict[str, Array] = field(default_factory=dict)


class _Watch:
    """The callback that copies wanted tensors as soon as they are computed."""

    def __init__(self, library: Any) -> None:
        self._name, self._data = library.ggml_get_name, library.ggml_get_data
        self._name.argtypes = self._data.argtypes = [ctypes.c_void_p]
        self._name.restype, self._data.restype = ctypes.c_char_p, ctypes.c_void_p
        self.parts: dict[str, list[Array]] = {}

    def __call__(self, pointer: int, asked: bool, _: Any) -> bool:
        name = self._name(pointer).decode()
        if not _WANTED.fullmatch(name):
            return not asked  # not wanted; or: go on
        if not asked:
            self.parts.setdefault(name, []).append(self._copy(pointer))
        return True

    def _copy(self, pointer: int) -> Array:
        tensor = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
        width, rows = tensor.ne[0], tensor.ne[1]
        made = np.empty((rows, width), _DTYPES[tensor.type])
        for row in range(rows):  # routes are the beginnings of sorted rows
            ctypes.memmove(made[row].ctypes.data, self._data(pointer) + row * tensor.nb[1], made[row].nbytes)
        return made


def ggml_dequantize(rows: Array, quant: str, width: int) -> Array:
    """``[rows, width]`` float32 of stored rows, by ggml: ten times as fast as the gguf package."""
    import llama_cpp

    if quant == "F32":
        return rows.view(np.float32).reshape(-1, width)
    stored, made = np.ascontiguousarray(rows), np.empty((len(rows), width), np.float32)
    function = getattr(llama_cpp.llama_cpp._lib, f"dequantize_row_{quant.lower().replace('k', 'K')}")
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    function(stored.ctypes.data, made.ctypes.data, made.size)
    return made


def run_llama_cpp(path: Path, ids: Sequence[int], threads: int, *, step: int = 0, repack: bool = True) -> GraphRun:
    """llama.cpp over ``ids``, ``step`` of them at a time (0: all), with a float32 cache and plain attention.

    ``repack``: with weights that it stores anew for its faster kernels.
    """
    import llama_cpp as api

    wanted = api.llama_model_default_params()
    wanted.use_extra_bufts, wanted.use_mmap = repack, not repack  # never the file and its copy in memory
    how = api.llama_context_default_params()
    how.flash_attn_type = 0
    return _run(api, api.llama_cpp._lib, path, ids, threads, step or len(ids), wanted, how)


def run_ik_llama_cpp(path: Path, ids: Sequence[int], threads: int) -> GraphRun:
    """ik_llama.cpp, likewise."""
    from ik_llama_cpp import _ctypes_api as api

    how = api.llama_context_default_params()
    how.flash_attn, how.mla_attn = False, 0
    return _run(api, api._lib, path, ids, threads, len(ids), api.llama_model_default_params(), how)


def _run(
    api: ModuleType, library: Any, path: Path, ids: Sequence[int], threads: int, step: int, wanted: Any, how: Any
) -> GraphRun:
    watch = _Watch(library)
    callback = api.ggml_backend_sched_eval_callback(watch)
    _silence(library)
    api.llama_backend_init()
    model = api.llama_model_load_from_file(str(first_part(path)).encode(), wanted)
    if not model:
        raise SystemExit(f"{path} cannot be loaded by {api.__name__}")
    how.n_ctx, how.n_batch, how.n_ubatch = len(ids) + -len(ids) % 256, step, step
    how.n_threads = how.n_threads_batch = threads
    how.type_k = how.type_v = 0  # float32
    how.cb_eval = callback
    context = api.llama_init_from_model(model, how)
    if not context:
        raise SystemExit(f"{api.__name__} makes no context for {path}")
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    logits = np.empty((len(ids), n_vocab), np.float32)
    for begin in range(0, len(ids), step):
        part = ids[begin : begin + step]
        batch = _batch(api, part, begin)
        if api.llama_decode(context, batch):
            raise SystemExit(f"{api.__name__} failed at token {begin} of {path}")
        for row in range(len(part)):
            pointer = ctypes.cast(api.llama_get_logits_ith(context, row), ctypes.POINTER(ctypes.c_float))
            logits[begin + row] = np.ctypeslib.as_array(pointer, (n_vocab,))
        api.llama_batch_free(batch)
    api.llama_free(context)
    return GraphRun(logits, {name: np.concatenate(parts) for name, parts in watch.parts.items()})


def _batch(api: ModuleType, ids: Sequence[int], position: int) -> Any:
    batch = api.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for row, token in enumerate(ids):
        batch.token[row], batch.pos[row] = token, position + row
        batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, 1
    return batch


@functools.cache
def _silence(library: Any) -> Any:
    """Takes the log away from stderr, for as long as the process lives.

    Kept in the cache because the library keeps the callback's address: whoever calls the library next, in this module
    or not, would jump into freed memory.
    """
    kind: Callable[..., Any] = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    quiet = kind(lambda *_: None)
    library.llama_log_set(quiet, None)
    return quiet
