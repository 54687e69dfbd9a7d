"""A case of a suite's ``engine`` list: a model runs prompts and generates tokens.

::

    engine:
    - prompt: [128, 512]     # tokens of a prompt, whose logits are waited for: time to first token
      depth: [0, 4096]       # tokens that are cached before the prompt comes
      generate: 64           # tokens after it, one by one; 0: none
      batch: 1               # sequences at once, each with prompt and depth of its own
      chunk: 256             # the most tokens of one prefill step
      kv: f16                # type of the cache
      tokens: random         # seeded ids, the same everywhere; or text: English that comes with kbench
      threads: [1, max]      # in place of the suite's; prefill_threads: likewise, by default the same
      implementation: auto   # for modules that no rule places
      rules: r.yaml          # a file beside the suite's; in its place --rules
      model: m.gguf          # likewise; in its place --model
      repetitions: 3         # fresh prompts and generations that are timed
      tags: [decode]         # for --tag

Every key but ``repetitions`` and ``tags`` takes a list too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbench.core import AUTO, KV_TYPES, Lines, UserError, did_you_mean
from kbench.model import model_stem
from kbench.results import Params, case_key

RANDOM, TEXT = "random", "text"
MAX_THREADS_WORD = "max"
# Numbers by key: default, least, most. A chunk's default is the engine's.
_NUMBERS: Mapping[str, tuple[int, int, int]] = {
    "prompt": (512, 1, 1 << 24),
    "depth": (0, 0, 1 << 24),
    "generate": (64, 0, 1 << 20),
    "batch": (1, 1, 1024),
    "chunk": (0, 1, 1 << 20),
}
_WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "kv": ("f16", tuple(KV_TYPES)),
    "tokens": (RANDOM, (RANDOM, TEXT)),
    "implementation": (AUTO, ()),
    "rules": ("", ()),
    "model": ("", ()),
}
_THREADS = ("threads", "prefill_threads")
_ONCE = ("repetitions", "tags")
KEYS = (*_NUMBERS, *_WORDS, *_THREADS, *_ONCE)
_REPETITIONS, _MOST_REPETITIONS = 3, 1000


@dataclass(frozen=True, slots=True)
class EngineCase:
    """One thing to run. ``chunk`` 0 is the engine's own; ``rules`` "" are none."""

    model: str
    threads: int
    prompt: int = 512
    depth: int = 0
    generate: int = 64
    batch: int = 1
    chunk: int = 0
    kv: str = "f16"
    tokens: str = RANDOM
    implementation: str = AUTO
    rules: str = ""
    prefill_threads: int = 0
    repetitions: int = _REPETITIONS

    @property
    def context(self) -> int:
        """Tokens that a sequence comes to hold."""
        return self.depth + self.prompt + self.generate

    @property
    def params(self) -> Params:
        """What a record's key says of the case besides threads; what is left at its default is left out but for the
        sizes and where the tokens are from."""
        said: dict[str, int | float | str] = {
            "model": model_stem(Path(self.model)), "tokens": self.tokens, "prompt": self.prompt, "depth": self.depth,
            "generate": self.generate, "batch": self.batch,
        }  # fmt: skip
        if self.chunk:
            said["chunk"] = self.chunk
        said["kv"] = self.kv
        if self.implementation != AUTO:
            said["implementation"] = self.implementation
        if self.rules:
            said["rules"] = Path(self.rules).stem
        if self.prefill_threads and self.prefill_threads != self.threads:
            said["prefill_threads"] = self.prefill_threads
        return said

    @property
    def key(self) -> str:
        """E.g. ``engine(model=m,tokens=random,prompt=512,depth=0,generate=64,batch=1,kv=f16,threads=2)``; its records
        have the same with ``load``, ``first_run``, ``prefill`` and ``decode`` in front."""
        return case_key("engine", {**self.params, "threads": self.threads})

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class EngineAxes:
    """One entry of the list: for each key the values that it takes. ``threads`` may be empty: the suite's."""

    values: Mapping[str, tuple[int | str, ...]]
    threads: tuple[int | str, ...]
    prefill_threads: tuple[int | str, ...]
    repetitions: int
    tags: tuple[str, ...]
    where: str

    @property
    def n_cases(self) -> int:
        counts = (len(values) for values in self.values.values())
        return math.prod(counts) * max(1, len(self.threads)) * max(1, len(self.prefill_threads))

    def cases(
        self, threads: Iterable[int | str], most_threads: int, model: str, rules: str, folder: Path
    ) -> Iterator[EngineCase]:
        """The entry's cases; ``max`` is ``most_threads``, ``model`` and ``rules`` stand in for the entry's own, whose
        paths begin at ``folder``.

        Raises:
            UserError: there is no model.
        """

        def count(word: int | str) -> int:
            return most_threads if word == MAX_THREADS_WORD else int(word)

        for values in itertools.product(*self.values.values()):
            said: dict[str, Any] = dict(zip(self.values, values, strict=True))
            said["model"] = model or _beside(said["model"], folder)
            said["rules"] = rules or _beside(said["rules"], folder)
            if not said["model"]:
                raise UserError("engine cases need a model", where=self.where, todo="give one: --model model.gguf")
            for own, prefill in itertools.product(self.threads or tuple(threads), self.prefill_threads or ("",)):
                prefill_count = count(prefill) if prefill != "" else 0
                yield EngineCase(
                    threads=count(own), prefill_threads=prefill_count, repetitions=self.repetitions, **said
                )


def _beside(name: str, folder: Path) -> str:
    """A file that a suite names: seen from the suite where it is there, else from where the command runs."""
    found = folder / name
    return str(found) if name and found.is_file() else name


def read_engine(items: Any, file: str, line: int | None) -> Iterator[EngineAxes]:
    """The entries of a parsed list; ``file`` and ``line`` say where it stands.

    Raises:
        UserError: a mistake in it.
    """
    if not isinstance(items, list) or not items:
        raise UserError(
            "no engine cases", where=f"{file}:{line}", accepted="engine: [{prompt: 512, generate: 64}, ...]"
        )
    for item in items:
        if not isinstance(item, Lines):
            accepted = f"a mapping of {', '.join(KEYS)}"
            raise UserError(f"an engine case is {item!r}", where=f"{file}:{line}", accepted=accepted)
        for key in item:
            if key not in KEYS:
                where, hint = f"{file}:{item.line_of(key)}", did_you_mean(str(key), KEYS)
                raise UserError(f"unknown key {key!r}", where=where, accepted=", ".join(KEYS), todo=hint)
        values: dict[str, tuple[int | str, ...]] = {}
        for key, (default, least, most) in _NUMBERS.items():
            values[key] = _values(item, key, file, f"a number, {least}..{most}", _number(least, most), default)
        for key, (word, words) in _WORDS.items():
            values[key] = _values(item, key, file, ", ".join(words) or "text", _word(words), word)
        counts = [
            _values(item, key, file, f"a positive number, or {MAX_THREADS_WORD}", _thread_count, None)
            for key in _THREADS
        ]
        repetitions = _values(item, "repetitions", file, f"1..{_MOST_REPETITIONS}", _number(1, _MOST_REPETITIONS), 3)
        if len(repetitions) != 1:
            where = f"{file}:{item.line_of('repetitions')}"
            raise UserError(f"{len(repetitions)} repetitions", where=where, accepted="one number")
        tags = read_tags(item, file)
        yield EngineAxes(values, counts[0], counts[1], int(repetitions[0]), tags, f"{file}:{item.line}")


def read_tags(item: Lines, file: str) -> tuple[str, ...]:
    """The ``tags`` of an entry: a word, or a list of words.

    Raises:
        UserError: they are something else.
    """
    return tuple(str(tag) for tag in _values(item, "tags", file, "words", lambda value: isinstance(value, str), None))


def _values(item: Lines, key: str, file: str, accepted: str, good: Any, default: Any) -> tuple[int | str, ...]:
    if key not in item:
        return () if default is None else (default,)
    found = item[key] if isinstance(item[key], list) else [item[key]]
    for value in found:
        if not good(value):
            raise UserError(f"{key} is {value!r}", where=f"{file}:{item.line_of(key)}", accepted=accepted)
    if not found:
        raise UserError(f"{key} is empty", where=f"{file}:{item.line_of(key)}", accepted="at least one value")
    return tuple(found)


def _number(least: int, most: int) -> Any:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _word(words: tuple[str, ...]) -> Any:
    return lambda value: isinstance(value, str) and (not words or value in words)


def _thread_count(value: Any) -> bool:
    return value == MAX_THREADS_WORD or bool(_number(1, 1024)(value))
