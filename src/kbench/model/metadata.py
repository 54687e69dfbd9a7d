"""GGUF metadata of an architecture."""

from __future__ import annotations

from typing import Any, NoReturn

from kbench.core import CorruptFile

from .checked_values import CheckedValues
from .gguf_file import GgufFile


class Metadata(CheckedValues):
    """The metadata of ``gguf``; keys are given without the architecture's prefix, e.g. ``block_count``."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf

    def fail(self, key: str, found: str, accepted: str = "") -> NoReturn:
        raise CorruptFile(found, where=f"{self._gguf.path}: {self.key(key)}", accepted=accepted)

    def key(self, key: str) -> str:
        return f"{self._gguf.architecture}.{key}"

    def find(self, key: str) -> Any:
        """A per-layer list of one and the same value counts as that value."""
        value = self._gguf.metadata.get(self.key(key))
        if not isinstance(value, list):
            return value
        if not value or any(item != value[0] for item in value):
            self.fail(key, "differs from layer to layer", "one value for all layers")
        return value[0]
