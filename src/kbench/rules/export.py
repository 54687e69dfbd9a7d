"""An assignment in other tools' words: the command that runs it there, and what of it cannot be said."""

from __future__ import annotations

from collections.abc import Callable

from kbench.core import Assignment, Module, UserError, did_you_mean

from .export_ktransformers import export_ktransformers
from .export_llama import export_ik_llama_cpp, export_llama_cpp
from .export_sglang import export_sglang_kt
from .exported import Export, Serving

_EXPORTS: dict[str, Callable[[Assignment, Module, Serving], Export]] = {
    "ktransformers": export_ktransformers,
    "llama.cpp": export_llama_cpp,
    "ik_llama.cpp": export_ik_llama_cpp,
    "sglang-kt": export_sglang_kt,
}
TOOLS = tuple(_EXPORTS)


def export(assignment: Assignment, tree: Module, to: str, serving: Serving | None = None) -> Export:
    """``assignment`` for ``to``, one of ``TOOLS``.

    Raises:
        UserError: no such tool, or nothing that it could run.
    """
    if to not in _EXPORTS:
        raise UserError(f"unknown tool {to!r}", where="--to", accepted=", ".join(TOOLS), todo=did_you_mean(to, TOOLS))
    return _EXPORTS[to](assignment, tree, serving or Serving())
