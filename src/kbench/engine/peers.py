"""Engines that are timed against each other on one file: kbench, llama.cpp, ik_llama.cpp.

A turn is one prefill (pp) of the request's ``prompt`` into an empty cache, and one decode (tg) of its ``generated``
tokens after its ``beginning``: ``[seconds of pp, seconds of tg]``. A request with ``logits`` answers the logits after
the beginning instead: whether both sides compute the same thing.

Each peer has the settings that were fastest for it, which its options can change: ``llama.cpp:flash_attn=0``. Every
side knows ``threads``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from kbench import __version__
from kbench.core import InvalidEnvironment, Placement, UserError, allowed_cpus, did_you_mean
from kbench.model import first_part
from kbench.rules import load_rules

from .loader import load_model
from .session import Session

# Tokens that decoding begins after, and that logits are compared after: a step of just so many hands them out.
BEGINNING = 8
# Tokens of one peer prefill step: their own default, and their best here.
PEER_CHUNK = 512

Turn = Callable[[Mapping[str, Any]], Any]
Made = tuple[dict[str, Turn], dict[str, Any]]
Options = Mapping[str, int]


def kbench_side(model: Path, threads: int, n_context: int, options: Options, rules: Path | None = None) -> Made:
    """Variants are named by the activation planes: ``planes=2`` is the default precision, 1 is the peers', 0 asks for
    both. Under ``rules`` they are the rules' affair."""
    about = {"version": __version__}
    if rules is not None:
        session = load_model(model, load_rules(rules), context=n_context, threads=threads)
        return {"": _session_turn(session)}, about | {"rules": rules.name}
    asked = options.get("planes", 2)
    sessions = kbench_sessions(model, n_context, threads, [asked] if asked else [2, 1])
    return {f"planes={planes}": _session_turn(session) for planes, session in sessions.items()}, about


def _session_turn(session: Session) -> Turn:
    return _turn(session.reset, session.prefill, session.decode)


def kbench_sessions(model: Path, n_context: int, threads: int, planes: Sequence[int]) -> dict[int, Session]:
    """A session for each number of activation planes; they share the packed weights."""
    sessions: dict[int, Session] = {}
    for n in planes:
        shared = next(iter(sessions.values())).weights if sessions else None
        block = Placement(block={"activation_planes": n})
        sessions[n] = load_model(model, None, default=block, context=n_context, threads=threads, weights=shared)
    return sessions


def llama_cpp_side(model: Path, threads: int, n_context: int, options: Options) -> Made:
    import llama_cpp as api

    settings = {"flash_attn": 1} | dict(options)
    llama = api.Llama(
        str(model), n_ctx=n_context, n_batch=PEER_CHUNK, n_ubatch=PEER_CHUNK, n_threads=threads,
        n_threads_batch=threads, flash_attn=bool(settings["flash_attn"]), verbose=False,
    )  # fmt: skip
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(llama.model))

    def decode(tokens: Sequence[int]) -> Any:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if api.llama_decode(llama.ctx, api.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        api.llama_synchronize(llama.ctx)
        return api.llama_get_logits_ith(llama.ctx, -1)[:n_vocab] if len(tokens) == BEGINNING else None

    def clear() -> None:
        api.llama_memory_clear(api.llama_get_memory(llama.ctx), True)

    about = {"package": _package("llama-cpp-python"), "settings": settings}
    return {"": _turn(clear, _in_chunks(decode), lambda token: decode([token]))}, about


def ik_llama_cpp_side(model: Path, threads: int, n_context: int, options: Options) -> Made:
    """Through its C API: the package's own class reaches neither repacking nor MLA, and turns flash attention off on
    CPUs without AVX-VNNI. The settings are those of ``-rtr -fmoe -mla 3 -fa``."""
    from ik_llama_cpp import _ctypes_api as api
    from ik_llama_cpp._internals import make_batch_range

    settings = {"repack": 1, "fused_moe": 1, "mla": 3, "flash_attn": 1} | dict(options)
    api.llama_backend_init()
    wanted = api.llama_model_default_params()
    wanted.mla, wanted.repack_tensors = settings["mla"], bool(settings["repack"])
    wanted.flash_attn = bool(settings["flash_attn"])
    loaded = api.llama_model_load_from_file(str(model).encode(), wanted)
    if not loaded:
        raise RuntimeError(f"cannot load {model}")
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    how = api.llama_context_default_params()
    how.n_ctx, how.n_batch, how.n_ubatch = n_context, PEER_CHUNK, PEER_CHUNK
    how.n_threads = how.n_threads_batch = threads
    how.flash_attn, how.mla_attn = bool(settings["flash_attn"]), settings["mla"]
    how.fused_moe_up_gate = bool(settings["fused_moe"])
    context = api.llama_init_from_model(loaded, how)
    if not context:
        raise RuntimeError("no context")
    position = 0

    def decode(tokens: Sequence[int]) -> Any:
        nonlocal position
        batch = make_batch_range(list(tokens), pos_start=position, logits_last=True)
        failed = api.llama_decode(context, batch)
        api.llama_batch_free(batch)
        if failed:
            raise RuntimeError("llama_decode failed")
        position += len(tokens)
        logits = api.llama_get_logits_ith(context, -1)  # waits for the result
        return logits[:n_vocab] if len(tokens) == BEGINNING else None

    def clear() -> None:
        nonlocal position
        api.llama_kv_cache_clear(context)
        position = 0

    about = {"package": _package("ik-llama-cpp-python"), "settings": settings, "library": _library()}
    return {"": _turn(clear, _in_chunks(decode), lambda token: decode([token]))}, about


_SIDES: dict[str, Callable[[Path, int, int, Options], Made]] = {
    "kbench": kbench_side,
    "llama.cpp": llama_cpp_side,
    "ik_llama.cpp": ik_llama_cpp_side,
}
ENGINES = tuple(_SIDES)
_OPTIONS = {
    "kbench": ("planes",),
    "llama.cpp": ("flash_attn",),
    "ik_llama.cpp": ("repack", "fused_moe", "mla", "flash_attn"),
}
# The module of each peer, and how to get it.
_PACKAGES = {
    "llama.cpp": ("llama_cpp", "pip install llama-cpp-python"),
    "ik_llama.cpp": ("ik_llama_cpp", "pip install --no-deps ik-llama-cpp-python"),
}


def parse_engine(text: str) -> tuple[str, dict[str, int]]:
    """``name[:option=number,...]``, e.g. ``kbench:planes=1,threads=2``.

    Raises:
        UserError: no such engine or option, or more threads than CPUs.
    """
    name, _, tail = text.partition(":")
    if name not in _SIDES:
        raise UserError(f"no engine {name!r}", accepted=", ".join(ENGINES), todo=did_you_mean(name, ENGINES))
    options: dict[str, int] = {}
    known = (*_OPTIONS[name], "threads")
    for item in filter(None, tail.split(",")):
        key, _, value = item.partition("=")
        if key not in known or not (value.isascii() and value.isdecimal() and len(value) < 10):
            raise UserError(f"option {item!r}", where=text, accepted=f"a number for {', '.join(known)}")
        options[key] = int(value)
    most = len(allowed_cpus())
    if not 1 <= options.get("threads", 1) <= most:
        raise UserError(f"{options['threads']} threads", where=text, accepted=f"1 to {most}, the CPUs of this process")
    return name, options


def check_engine(name: str) -> None:
    """That engine ``name`` is here.

    Raises:
        InvalidEnvironment: its package is missing; the message says what to install.
    """
    package, install = _PACKAGES.get(name, ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise InvalidEnvironment(f"package {package} is not installed", where=name, todo=install)


def engine_turns(text: str, model: Path, threads: int, n_context: int, rules: Path | None = None) -> Made:
    """Loads an engine: its turns by variant, and what it says of itself.

    Raises:
        KbenchError: no such engine or option, a package or a file that is missing or unknown.
    """
    name, options = parse_engine(text)
    check_engine(name)
    threads = options.pop("threads", threads)
    if rules is not None and name != "kbench":
        raise UserError(f"rules for {name}", accepted="rules for kbench")
    if name == "kbench":
        turns, about = kbench_side(model, threads, n_context, options, rules)
    else:
        turns, about = _SIDES[name](first_part(model), threads, n_context, options)
    return turns, about | {"threads": threads}


def _turn(clear: Callable[[], Any], prefill: Callable[[Sequence[int]], Any], decode: Callable[[int], Any]) -> Turn:
    def turn(request: Mapping[str, Any]) -> Any:
        prompt, beginning, generated = request["prompt"], request["beginning"], request["generated"]
        clear()
        if request.get("logits"):
            return [float(value) for value in prefill(beginning)]
        start = time.perf_counter()
        prefill(prompt)
        prefill_seconds = time.perf_counter() - start
        clear()
        prefill(beginning)
        start = time.perf_counter()
        for token in generated:
            decode(token)
        return [prefill_seconds, time.perf_counter() - start]

    return turn


def _in_chunks(decode: Callable[[Sequence[int]], Any]) -> Callable[[Sequence[int]], Any]:
    def prefill(tokens: Sequence[int]) -> Any:
        logits = None
        for begin in range(0, len(tokens), PEER_CHUNK):
            logits = decode(tokens[begin : begin + PEER_CHUNK])
        return logits

    return prefill


def _package(name: str) -> str:
    return f"{name} {metadata.version(name)}"


def _library() -> str:
    """Which build of ik_llama.cpp: the package's, or the reader's own."""
    return "built here" if os.environ.get("IK_LLAMA_CPP_LIB_PATH") else "the package's"
