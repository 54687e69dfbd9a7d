"""GGUF metadata read key by key, each value checked where it is used."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from kbench.core import CorruptFile

from .gguf_file import GgufFile


class Metadata:
    """The metadata of ``gguf``; keys are given without the architecture's prefix, e.g. ``block_count``."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf

    def fail(self, key: str, found: str, accepted: str = "") -> NoReturn:
        raise CorruptFile(found, where=f"{self._gguf.path}: {self.key(key)}", accepted=accepted)

    def key(self, key: str) -> str:
        return f"{self._gguf.architecture}.{key}"

    def has(self, key: str) -> bool:
        return self.key(key) in self._gguf.metadata

    def get(self, key: str, default: Any) -> Any:
        value = self._gguf.metadata.get(self.key(key), default)
        if value is None:
            self.fail(key, "this key is missing")
        return value

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer from ``least`` up to 2^31; a per-layer list of one and the same number counts as that number."""
        value = self.get(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, list):
            self.fail(key, "differs from layer to layer", "one number for all layers")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
            self.fail(key, f"found {value!r}", f"an integer of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
            self.fail(key, f"found {value!r}", "a positive number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            self.fail(key, f"found {value!r}", "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"found {value!r}", "a boolean")
        return value
