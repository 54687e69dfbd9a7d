"""A Hugging Face config.json read key by key, each value checked where it is used."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from kbench.core import CorruptFile, UserError

# Those of published models are a few KiB.
MOST_BYTES = 1 << 20


class ConfigJson:
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

    def has(self, *keys: str) -> bool:
        """Whether it has any of ``keys``."""
        return any(self._values.get(key) is not None for key in keys)

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

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """From ``least`` up to 2^31."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
            self.fail(key, f"found {value!r:.80}", f"an integer of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self._get(key, default)
        right = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not right or not 0 < value < math.inf:
            self.fail(key, f"found {value!r:.80}", "a positive number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            self.fail(key, f"found {value!r:.80}", "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"found {value!r:.80}", "true or false")
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            self.fail(key, "this key is missing")
        return value


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
