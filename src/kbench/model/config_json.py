"""A Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from kbench.core import CorruptFile, UserError

from .checked_values import CheckedValues

# Those of published models are a few KiB.
MOST_BYTES = 1 << 20


class ConfigJson(CheckedValues):
    """The mapping in ``path``, or with ``values`` one inside it; null counts as a key that is missing."""

    def __init__(self, path: Path, values: Mapping[str, Any] | None = None, prefix: str = "") -> None:
        """
        Raises:
            UserError: the file cannot be read.
            CorruptFile: it is no JSON, or too long, or no mapping.
        """
        self.path, self._prefix = path, prefix
        self._values = _read(path) if values is None else values

    def fail(self, key: str, found: str, accepted: str = "") -> NoReturn:
        raise CorruptFile(found, where=f"{self.path}: {self._prefix}{key}", accepted=accepted)

    def find(self, key: str) -> Any:
        return self._values.get(key)

    def mapping(self, key: str) -> ConfigJson:
        """The mapping below ``key``, empty where there is none."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, dict):
            self.fail(key, f"found {value!r:.80}", "a mapping")
        return ConfigJson(self.path, value or {}, f"{key}.")

    def list(self, key: str) -> list[Any]:
        """Empty where there is none."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, list):
            self.fail(key, f"found {value!r:.80}", "a list")
        return value or []


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UserError("no such file", where=str(path), todo="check the path") from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    if len(data) > MOST_BYTES:
        raise CorruptFile(f"more than {MOST_BYTES} bytes", where=str(path), accepted="a model's config.json")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"no JSON: {str(error)[:120]}", where=str(path), accepted="a model's config.json") from None
    if not isinstance(values, dict):
        raise CorruptFile("no mapping", where=str(path), accepted="a model's config.json")
    return values
