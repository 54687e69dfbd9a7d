"""Holds the option grammars of `kbench rules export` against the sources of the tools that they describe.

    python scripts/option_grammars.py llama.cpp llama.cpp/common/arg.cpp
    python scripts/option_grammars.py ik_llama.cpp ik_llama.cpp/common/common.cpp
    python scripts/option_grammars.py sglang-kt site-packages/sglang/srt/server_args.py
    python scripts/option_grammars.py ktransformers ktransformers/archive/ktransformers/local_chat.py

Prints what the grammar says otherwise than the source: options that are gone, names that belong to another option,
flags that take a value and the reverse. Exit code 1 if there is any. Run it when a tool has a new version, then change
the file in src/kbench/rules/option_grammars/, with its version.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kbench.rules.option_grammar import Option, option_grammar

# All names of an option, and whether it takes a value.
Found = tuple[frozenset[str], bool]


def in_llama_cpp(text: str) -> Iterator[Found]:
    """``add_opt(common_arg({"-t", "--threads"}, "N", ...``: after the names, for a flag its help or its negation."""
    for match in re.finditer(r"common_arg\(\s*\{([^}]*)\},\s*(?=(.{0,2000}))", text, re.DOTALL):
        names = frozenset(re.findall(r'"(-[^"]+)"', match[1]))
        rest = match[2]
        if rest.startswith("{"):  # {"--no-mmap"}: a flag with a negation
            negated = frozenset(re.findall(r'"(-[^"]+)"', rest[: rest.index("}")]))
            yield names | negated, False
            continue
        # A value's name is a literal, followed by the help. A flag has the help alone, followed by its function.
        literal = re.match(r'(?:"(?:[^"\\]|\\.)*"\s*)+,\s*', rest)
        yield names, literal is not None and not rest[literal.end() :].startswith("[")


def in_ik_llama_cpp(text: str) -> Iterator[Found]:
    """``if (arg == "-t" || arg == "--threads") { CHECK_ARG ...``"""
    blocks = re.split(r"\n    (?:else )?if \(", text)
    for block in blocks:
        condition, _, body = block.partition("{")
        names = frozenset(re.findall(r'arg == "(-[^"]+)"', condition))
        if names:
            yield names, "CHECK_ARG" in body or "argv[++i]" in body


def in_sglang(text: str) -> Iterator[Found]:
    """``parser.add_argument("--tp-size", ..., type=int)``"""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = frozenset(str(a.value) for a in node.args if isinstance(a, ast.Constant))
            action = next((k.value for k in node.keywords if k.arg == "action"), None)
            flag = isinstance(action, ast.Constant) and str(action.value).startswith("store_")
            yield names, not flag


def in_ktransformers(text: str) -> Iterator[Found]:
    """Arguments of ``local_chat``, which Fire turns into options."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == "local_chat":
            for argument in node.args.args:
                yield frozenset([f"--{argument.arg}"]), True


READERS: dict[str, Callable[[str], Iterator[Found]]] = {
    "llama.cpp": in_llama_cpp,
    "ik_llama.cpp": in_ik_llama_cpp,
    "sglang-kt": in_sglang,
    "ktransformers": in_ktransformers,
}


def differences(tool: str, text: str) -> list[str]:
    """What the grammar says otherwise than ``text``."""
    found = list(READERS[tool](text))
    told = []
    options: list[Option] = list({option.names: option for option in option_grammar(tool).options.values()}.values())
    for option in options:
        for name in option.names:
            of = [(names, value) for names, value in found if name in names]
            if not of:
                told.append(f"{name}: not in the source")
            elif not any(set(option.names) <= names for names, _ in of):
                told.append(f"{name}: there of {', '.join(sorted(of[0][0]))}")
            elif all(value != (option.kind is not None) for _, value in of):
                told.append(f"{name}: there it {'takes a value' if of[0][1] else 'is a flag'}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=sorted(READERS))
    parser.add_argument("source", type=Path)
    options = parser.parse_args()
    data = options.source.read_bytes()
    told = differences(options.tool, data.decode())
    print("\n".join(told) if told else "the grammar says what the source says")
    print(f"sha256 {hashlib.sha256(data).hexdigest()[:16]}")
    sys.exit(bool(told))


if __name__ == "__main__":
    main()
