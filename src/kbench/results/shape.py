"""The shape that a JSON value of an untrusted file must have, said as data and checked at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kbench.core import CorruptFile

# Beyond this a quantity in kbench's units (bytes, FLOPs, seconds, rates) is nonsense, and sums of it would overflow.
_MAX_NUMBER = 1e30


@dataclass(frozen=True, slots=True)
class Text:
    """A text; with ``choices`` one of them."""

    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from ``least``."""

    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Maybe:
    """``shape``, or null."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of ``shape``, at most ``most`` of them."""

    shape: Shape
    most: int = 100_000


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object with any keys, at most ``most``, each value of ``shape``."""

    shape: Shape
    most: int = 1000


@dataclass(frozen=True, slots=True)
class Object:
    """An object with at least ``required``; those of ``optional`` that are there must have their shape."""

    required: Mapping[str, Shape]
    optional: Mapping[str, Shape] | None = None


Shape = Text | Number | Maybe | ListOf | MapOf | Object


def check_shape(
    value: Any, shape: Shape, where: str, field: str = "", wanted: str = "what `kbench tune` writes"
) -> None:
    """Nothing, if ``value`` has ``shape``; ``wanted`` says what else a file without a field should be.

    Raises:
        CorruptFile: it has not; the message names the field.
    """

    def bad(accepted: str) -> CorruptFile:
        found = json.dumps(value)[:60] if not isinstance(value, (dict, list)) else f"a JSON {type(value).__name__}"
        return CorruptFile(f"{field or 'the file'} is {found}", where=where, accepted=accepted)

    if isinstance(shape, Maybe):
        if value is not None:
            check_shape(value, shape.shape, where, field, wanted)
    elif isinstance(shape, Text):
        if not isinstance(value, str) or (shape.choices and value not in shape.choices):
            raise bad(", ".join(shape.choices) or "text")
    elif isinstance(shape, Number):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not shape.least <= value <= _MAX_NUMBER:
            raise bad(f"a number from {shape.least:g} to {_MAX_NUMBER:g}")
    elif isinstance(shape, ListOf):
        if not isinstance(value, list) or len(value) > shape.most:
            raise bad(f"a list of at most {shape.most}")
        for index, item in enumerate(value):
            check_shape(item, shape.shape, where, f"{field}[{index}]", wanted)
    elif not isinstance(value, dict):
        raise bad("an object")
    elif isinstance(shape, MapOf):
        if len(value) > shape.most:
            raise bad(f"an object of at most {shape.most} entries")
        for name, item in value.items():
            check_shape(item, shape.shape, where, f"{field}.{name[:60]}", wanted)
    else:
        for name, inner in {**shape.required, **(shape.optional or {})}.items():
            path = f"{field}.{name}" if field else name
            if name in value:
                check_shape(value[name], inner, where, path, wanted)
            elif name in shape.required:
                raise CorruptFile(f"{path} is missing", where=where, accepted=wanted)
