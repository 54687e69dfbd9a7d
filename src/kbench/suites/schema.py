"""The suite file, version 1: axes whose product is a list of cells.

::

    suite: 1
    name: smoke
    description: a line for people            # optional
    implementations: [auto]                   # names; auto = the best that runs, all = every one that runs
    threads: [1, max]                         # max = what this machine has
    ops:
      linear:                                 # every parameter of the op, a value or a list of values
      - {quant: [Q4_K, Q6_K], n: 1536, k: 5120, tokens: [1, 64]}
      - {quant: Q4_K, n: 1536, k: 5120, tokens: 1, block: {activation_planes: [1, 2]}}  # optional
      - {quant: Q4_K, n: 1536, k: 5120, tokens: 1, block: each}  # what the kernel declares
    exclude: ["linear(quant=Q6_K*tokens=64*"] # optional: globs on case keys

``block`` holds kernel parameters: a mapping multiplies them out, ``each`` takes every candidate of every parameter that
the implementation declares for the problem, one at a time with the others at their defaults.

``tags: [decode, quick]`` of an entry are what ``--tag`` picks by. ``device: cuda`` of the suite asks for a GPU; by
default cells run on the CPU.

In place of ``implementations`` and ``ops``, or beside them, a suite may have ``engine`` cases, whole models that run:
see ``engine_case``; in their place a ``ladder``, see ``rungs``, or ``claims``, see ``claim_list``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kbench.core import CPU, OPS, OPTIONAL, Device, Lines, UserError, did_you_mean, is_word, load_yaml, parse_yaml

from .claim_list import ClaimCheck, read_claims
from .engine_case import MAX_THREADS_WORD, EngineAxes, read_engine, read_tags
from .rungs import Rung, read_rungs

VERSION = 1
AUTO_WORD, ALL_WORD = "auto", "all"
BLOCK_KEY, EACH_WORD, TAGS_KEY = "block", "each", "tags"
# A suite of more cells would run for hours: rather a mistake in a list than a wish.
MAX_CELLS = 10_000
# As many as a pool can have.
_MOST_THREADS = 1024
# Of a shape: larger ones are none, and their products would leave 64 bits.
_MOST_NUMBER = 1 << 48
# What can be a part of a file's name: records of a suite go to one.
_NAME = re.compile(r"[\w+-][\w.+-]{0,79}")

_KEYS = (
    "suite", "name", "description", "implementations", "threads", "device", "ops", "exclude", "engine", "ladder",
    "claims",
)  # fmt: skip
# A suite that has one of these has nothing else to measure.
_ALONE = ("ladder", "claims")


@dataclass(frozen=True, slots=True)
class Axes:
    """One entry under an op: for each parameter the values it takes, in the op's order.

    ``block`` has the values of kernel parameters by name; ``each_block`` asks for all that a kernel declares, each with
    the others at their defaults.
    """

    op: str
    values: tuple[tuple[int | str, ...], ...]
    where: str
    block: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    each_block: bool = False
    tags: tuple[str, ...] = ()

    @property
    def n_problems(self) -> int:
        """Problems times settings of kernel parameters that are written out."""
        return math.prod(len(values) for values in (*self.values, *self.block.values()))


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite as written: nothing is looked up on this machine yet."""

    name: str
    description: str
    implementations: tuple[str, ...]
    threads: tuple[int | str, ...]
    axes: tuple[Axes, ...]
    exclude: tuple[str, ...]
    ladder: tuple[Rung, ...] = ()
    engine: tuple[EngineAxes, ...] = ()
    claims: tuple[ClaimCheck, ...] = ()
    device: Device = CPU
    folder: Path = Path()

    def tagged(self, tags: Iterable[str]) -> Suite:
        """The suite with those entries only that have one of ``tags``; all of it where none is given.

        Raises:
            UserError: nothing has any of them.
        """
        wanted = set(tags)
        if not wanted:
            return self
        kept = replace(
            self,
            axes=tuple(entry for entry in self.axes if wanted & set(entry.tags)),
            engine=tuple(entry for entry in self.engine if wanted & set(entry.tags)),
        )
        if not kept.axes and not kept.engine:
            lists = [*(entry.tags for entry in self.axes), *(entry.tags for entry in self.engine)]
            known = sorted({tag for tags in lists for tag in tags})
            raise UserError(
                f"nothing in {self.name} has the tag {', '.join(sorted(wanted))}",
                accepted=", ".join(known) or "no tags",
            )
        return kept


def suites_root() -> Path:
    """The folder of the suites that come with kbench: beside this file where it is installed, else the checkout's."""
    installed = Path(__file__).parent / "data"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "suites"


def load_suite(suite: str | Path) -> Suite:
    """The suite in a file, or the one that comes with kbench under that name.

    Raises:
        UserError: no such suite; or every mistake in it, with file and line.
    """
    path = Path(suite)
    if path.suffix not in (".yaml", ".yml"):
        known = sorted(file.stem for file in suites_root().glob("*.yaml"))
        if str(suite) not in known:
            hint = did_you_mean(str(suite), known)
            raise UserError(f"no suite {str(suite)!r}", accepted=f"a .yaml file, {', '.join(known)}", todo=hint)
        path = suites_root() / f"{suite}.yaml"
    return replace(read_suite(load_yaml(path), str(path)), folder=path.parent)


def parse_suite(text: str, where: str = "<suite>") -> Suite:
    """Like ``load_suite`` for text at hand."""
    return read_suite(parse_yaml(text, where), where)


def _unknown(word: str, known: Iterable[str], what: str, where: str) -> UserError:
    known = list(known)
    return UserError(f"unknown {what} {word!r}", where=where, accepted=", ".join(known), todo=did_you_mean(word, known))


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(document: Lines, key: str, file: str, default: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str):
        raise UserError(f"{key} is {value!r}", where=f"{file}:{document.line_of(key)}", accepted="text")
    return value


def _texts(document: Lines, key: str, file: str, default: list[str]) -> tuple[str, ...]:
    values = _items(document.get(key, default))
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"{key} is {values!r}", where=f"{file}:{document.line_of(key)}", accepted="a list of texts")
    return tuple(values)


def read_suite(document: Any, file: str) -> Suite:
    """The suite of a parsed document; ``file`` names it in errors."""
    if not isinstance(document, Lines):
        raise UserError("not a suite", where=file, accepted="a mapping that starts with suite: 1")
    for key in document:
        if key not in _KEYS:
            raise _unknown(str(key), _KEYS, "key", f"{file}:{document.line_of(key)}")
    version = document.get("suite")
    if version != VERSION or isinstance(version, bool):
        raise UserError(f"suite is {version!r}", where=f"{file}:{document.line_of('suite')}", accepted=str(VERSION))
    # A file's name may have blanks, which records' files have not.
    stem = re.sub(r"[^\w.+-]+", "-", Path(file).stem).strip("-.")[:80] or "suite"
    name = _text(document, "name", file, stem)
    if not _NAME.fullmatch(name):
        where = f"{file}:{document.line_of('name')}"
        raise UserError(f"name is {name[:80]!r}", where=where, accepted="letters, digits, _ . + -")
    threads = tuple(_read_threads(document, file))
    for key in _ALONE:
        if key in document:
            return _read_alone(document, key, file, name, threads)
    engine = tuple(read_engine(document["engine"], file, document.line_of("engine"))) if "engine" in document else ()
    axes = tuple(_read_ops(document, file)) if "ops" in document or not engine else ()
    for key, total in (("ops", sum(entry.n_problems for entry in axes)), ("engine", sum(e.n_cases for e in engine))):
        if total > MAX_CELLS:
            where = f"{file}:{document.line_of(key)}"
            raise UserError(
                f"{total} {'problems' if key == 'ops' else 'cases'}", where=where, accepted=f"at most {MAX_CELLS}"
            )
    implementations = _texts(document, "implementations", file, [AUTO_WORD])
    if not implementations:
        where = f"{file}:{document.line_of('implementations')}"
        raise UserError("implementations is empty", where=where, accepted="at least one name, auto or all")
    return Suite(
        name,
        _text(document, "description", file, ""),
        implementations,
        threads,
        axes,
        _texts(document, "exclude", file, []),
        engine=engine,
        device=_device(document, file),
    )


def _device(document: Lines, file: str) -> Device:
    return Device.parse(_text(document, "device", file, "cpu"), f"{file}:{document.line_of('device')}")


def _read_alone(document: Lines, kind: str, file: str, name: str, threads: tuple[int | str, ...]) -> Suite:
    """A suite that is a ladder, or a list of claims."""
    for key in (*(key for key in _ALONE if key != kind), "implementations", "ops", "exclude", "engine", "device"):
        if key in document:
            where = f"{file}:{document.line_of(key)}"
            raise UserError(f"{key} beside a {kind}", where=where, accepted=f"either {key}, or {kind}")
    if len(threads) != 1:
        where = f"{file}:{document.line_of('threads')}"
        raise UserError(f"{len(threads)} thread counts", where=where, accepted=f"one for {kind}")
    description, line = _text(document, "description", file, ""), document.line_of(kind)
    suite = Suite(name, description, (), threads, (), ())
    if kind == "ladder":
        return replace(suite, ladder=tuple(read_rungs(document[kind], file, line)))
    return replace(suite, claims=tuple(read_claims(document[kind], file, line)))


def _read_threads(document: Lines, file: str) -> Iterable[int | str]:
    values, where = _items(document.get("threads", [MAX_THREADS_WORD])), f"{file}:{document.line_of('threads')}"
    if not values:
        raise UserError("threads is empty", where=where, accepted=f"1 to {_MOST_THREADS}, or max, or a list")
    for value in values:
        good = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_THREADS
        if not good and value != MAX_THREADS_WORD:
            raise UserError(f"threads is {value!r}", where=where, accepted=f"1 to {_MOST_THREADS}, or max")
        yield value


def _read_ops(document: Lines, file: str) -> Iterable[Axes]:
    ops = document.get("ops")
    if not isinstance(ops, Lines) or not ops:
        raise UserError("no ops", where=f"{file}:{document.line_of('ops')}", accepted="ops: {linear: [{...}], ...}")
    for op, entries in ops.items():
        where = f"{file}:{ops.line_of(op)}"
        if op not in OPS:
            raise _unknown(str(op), OPS, "op", where)
        if not _items(entries):
            raise UserError(f"{op} is empty", where=where, accepted=f"a list of mappings of {', '.join(OPS[op])}")
        for entry in _items(entries):
            if not isinstance(entry, Lines):
                raise UserError(
                    f"{op} is {entry!r}", where=where, accepted=f"a list of mappings of {', '.join(OPS[op])}"
                )
            yield _read_axes(op, entry, file)


def _read_axes(op: str, entry: Lines, file: str) -> Axes:
    for name in entry:
        if name not in OPS[op] and name not in (BLOCK_KEY, TAGS_KEY):
            raise _unknown(str(name), OPS[op], f"parameter of {op}", f"{file}:{entry.line_of(name)}")
    left_out = OPTIONAL.get(op, {})
    missing = [name for name in OPS[op] if name not in entry and name not in left_out]
    if missing:
        where = f"{file}:{entry.line}"
        raise UserError(f"{op} lacks {', '.join(missing)}", where=where, accepted=", ".join(OPS[op]))
    values = tuple(
        _read_values(entry, name, file, left_out.get(name, 1), is_word(name)) if name in entry else (left_out[name],)
        for name in OPS[op]
    )
    tags = read_tags(entry, file)
    if BLOCK_KEY not in entry:
        return Axes(op, values, f"{file}:{entry.line}", tags=tags)
    block, where = entry[BLOCK_KEY], f"{file}:{entry.line_of(BLOCK_KEY)}"
    if block == EACH_WORD:
        return Axes(op, values, where, each_block=True, tags=tags)
    if not isinstance(block, Lines):
        raise UserError(f"block is {block!r}", where=where, accepted=f"a mapping of kernel parameters, or {EACH_WORD}")
    settings = {name: _read_values(block, name, file, 0) for name in block}
    return Axes(op, values, where, settings, tags=tags)


def _read_values(
    entry: Lines, name: str, file: str, lowest: int, of_words: bool | None = None
) -> tuple[int | str, ...]:  # fmt: skip
    """The values of one key; ``of_words``: words alone, or numbers alone (from ``lowest``), or (None) either."""
    where, items = f"{file}:{entry.line_of(name)}", _items(entry[name])
    number = "a positive number" if lowest else "a number from 0"
    accepted = {True: "text", False: number, None: f"text or {number}"}[of_words]
    for item in items:
        is_number = isinstance(item, int) and not isinstance(item, bool) and lowest <= item <= _MOST_NUMBER
        if not (is_number and not of_words) and not (isinstance(item, str) and of_words is not False):
            raise UserError(f"{name} is {item!r}", where=where, accepted=f"{accepted}, or a list")
    if not items:
        raise UserError(f"{name} is empty", where=where, accepted="at least one value")
    return tuple(items)
