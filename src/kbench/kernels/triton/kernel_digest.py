"""What machine code of a kernel depends on, as a number that changes with it: read from the sources, without Triton."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from pathlib import Path

from .kept_kernel import KeptKernel

_HERE = Path(__file__).parent
# What is not said of a configuration: its name, and what is asked of the machine code.
_COMPILED_IN = ("arguments", "constants", "warps", "stages", "multiples", "registers", "fp_fusion")


def kernel_digest(kernel: KeptKernel) -> str:
    """Of the function, of everything in this folder that it names, and of what is compiled into it: twelve hexadecimal
    digits. Comments, docstrings and where a definition stands make no difference."""
    module, _, name = kernel.function.rpartition(".")
    configuration = json.dumps([getattr(kernel, field) for field in _COMPILED_IN], sort_keys=True)
    return hashlib.sha256(f"{_source(module, name)}\n{configuration}".encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=256)
def _source(module: str, name: str) -> str:
    """The definition of ``name``, and those that it needs, in the order of their names."""
    wanted, found = [(module, name)], dict[tuple[str, str], str]()
    while wanted:
        module, name = wanted.pop()
        defined, imported = _names(module)
        if name in imported:
            wanted.append(imported[name])
        elif name in defined and (module, name) not in found:
            found[module, name] = _text(defined[name])
            wanted += [(module, node.id) for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
    return "\n".join(f"{module}.{name}: {found[module, name]}" for module, name in sorted(found))


@functools.lru_cache(maxsize=64)
def _names(module: str) -> tuple[dict[str, ast.stmt], dict[str, tuple[str, str]]]:
    """What a file of this folder defines, and what it imports from its neighbours: from which file, and as what."""
    defined: dict[str, ast.stmt] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.parse((_HERE / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {n.id: node for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is not None:
            imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return defined, imported


def _text(node: ast.stmt) -> str:
    if not isinstance(node, ast.FunctionDef):
        return ast.unparse(node)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return "\n".join(map(ast.unparse, (node.args, *node.decorator_list, *body)))
