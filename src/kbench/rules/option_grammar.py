"""What another tool accepts on its command line, as data: names of options, how many values, of which kind.

Each file of ``option_grammars/`` was written from the source that it names, at the version that it names; a command
line that kbench emits is held against it before anybody sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kbench.core import CheckBroken, Lines, load_yaml

_FOLDER = Path(__file__).parent / "option_grammars"
_KEYS = ("tool", "program", "version", "source", "options")

# Kind of a value -> the texts that are one. Bounds and choices come on top.
_KINDS: dict[str, Callable[[str], object]] = {
    "text": lambda text: bool(text),
    "integer": re.compile(r"-?\d{1,9}").fullmatch,
    "number": re.compile(r"-?\d+(\.\d+)?").fullmatch,
    "numbers": re.compile(r"\d+(\.\d+)?(,\d+(\.\d+)?)*").fullmatch,
    "names": re.compile(r"[A-Za-z]\w*(,[A-Za-z]\w*)*").fullmatch,
    # A pattern and a buffer type; what joins several of them, and what ends a pattern, cannot be part of it.
    "override": re.compile(r"[^,=]+=[A-Za-z]\w*").fullmatch,
    "pairs": re.compile(r"-?\d+,\d+(,-?\d+,\d+)*").fullmatch,
}


@dataclass(frozen=True, slots=True)
class Option:
    """``kind`` is None for a flag; ``least`` bounds integers; ``repeats``: it may come several times."""

    names: tuple[str, ...]
    kind: str | None = None
    choices: tuple[str, ...] = ()
    least: int | None = None
    repeats: bool = False

    def complaint(self, value: str) -> str:
        """What is wrong with ``value``; empty: nothing."""
        if value in self.choices:
            return ""
        if self.kind == "choice":
            return f"{value!r} is none of {', '.join(self.choices)}"
        if not _KINDS[self.kind or "text"](value):
            return f"{value!r} is no {self.kind}"
        if self.least is not None and int(value) < self.least:
            return f"{value} is less than {self.least}"
        return ""


@dataclass(frozen=True, slots=True)
class OptionGrammar:
    """The options of ``program``, as ``source`` has them in ``version``."""

    tool: str
    program: tuple[str, ...]
    version: str
    source: str
    options: Mapping[str, Option]

    def complaints(self, arguments: Sequence[str]) -> list[str]:
        """Everything that the tool would refuse, or take for something else; ``arguments`` are without the program."""
        found: list[str] = []
        seen: set[tuple[str, ...]] = set()
        rest = list(arguments)
        while rest:
            name = rest.pop(0)
            option = self.options.get(name)
            if option is None:
                found.append(f"{name!r} is no option of {self.tool} {self.version}")
                continue
            if option.names in seen and not option.repeats:
                found.append(f"{name} comes twice")
            seen.add(option.names)
            if option.kind is None:
                continue
            if not rest:
                found.append(f"{name} without a value")
            elif wrong := option.complaint(rest.pop(0)):
                found.append(f"{name}: {wrong}")
        return found

    def check(self, arguments: Sequence[str]) -> None:
        """Raises CheckBroken for a command line that the tool would not take: kbench wrote it, so kbench is wrong."""
        if found := self.complaints(arguments):
            raise CheckBroken("; ".join(found), where=f"options of {self.tool} {self.version}")


def grammar_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache(maxsize=8)
def option_grammar(tool: str) -> OptionGrammar:
    """The grammar of ``tool``, one of ``grammar_names()``."""
    data = load_yaml(_FOLDER / f"{tool}.yaml")
    if not isinstance(data, Lines) or tuple(data) != _KEYS:
        raise CheckBroken(f"the keys are not {', '.join(_KEYS)}", where=f"option grammar of {tool}")
    options: dict[str, Option] = {}
    for entry in data["options"]:
        option = _option(entry.plain())
        options.update(dict.fromkeys(option.names, option))
    return OptionGrammar(
        str(data["tool"]), tuple(str(data["program"]).split()), str(data["version"]), str(data["source"]), options
    )


def _option(entry: dict[str, object]) -> Option:
    names, choices = str(entry["names"]).split(), str(entry.get("choices", "")).split()
    kind, least = entry.get("value"), entry.get("least")
    if kind is None and choices:
        kind = "choice"
    if kind is not None and kind != "choice" and kind not in _KINDS:
        raise CheckBroken(f"{kind!r} is no kind of value", where=f"option {names[0]}")
    return Option(
        tuple(names),
        None if kind is None else str(kind),
        tuple(choices),
        least if isinstance(least, int) else None,
        bool(entry.get("repeats", False)),
    )
