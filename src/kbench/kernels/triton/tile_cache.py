"""Choices of tiles that were measured, kept on disk: JSON, by device, kernel version and shape class.

    {"schema": "kbench.tiles/1",
     "devices": {"NVIDIA H200": {"3f9c21aa04be": {"int4 group=128 m=16 n=16384 k=5120":
         {"tile": "16x64w4s4", "parts": 2, "seconds": 1.2e-05}}}}}

A file that cannot be read, or whose parts are not what they should be, is as good as none: measuring again costs less
than an answer that is wrong. Writing reads again what others wrote meanwhile, and replaces the file at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbench.core import UserError, write_whole

from .int4_tile import BY_NAME, MAX_PARTS, Cut

SCHEMA = "kbench.tiles/1"
# Far above what all shapes of all models take: a file that is larger is none of ours.
_MAX_BYTES = 16 << 20
_MAX_SECONDS = 1e6  # no number, or one too large for a float, is none either


def default_path() -> Path:
    """``$XDG_CACHE_HOME/kbench/tiles.json``, else in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbench" / "tiles.json"


@dataclass(frozen=True, slots=True)
class Measured:
    """A choice, and what it took."""

    cut: Cut
    seconds: float


class TileCache:
    """Of one device and one version of the kernels, in ``path``."""

    def __init__(self, path: Path, device: str, version: str) -> None:
        self._path, self._device, self._version = path, device, version
        self._known: dict[str, Measured] | None = None

    def get(self, shape: str) -> Measured | None:
        if self._known is None:
            self._known = self._mine(self._read())
        return self._known.get(shape)

    def put(self, shape: str, found: Measured) -> bool:
        """Remembers ``found``; whether it is on disk, too: a folder that cannot be written to costs measuring again."""
        whole = self._read()
        self._known = {**self._mine(whole), **(self._known or {}), shape: found}
        devices = dict(whole.get("devices", {})) if isinstance(whole.get("devices"), Mapping) else {}
        plain = {
            key: {"tile": value.cut.tile.name, "parts": value.cut.parts, "seconds": value.seconds}
            for key, value in sorted(self._known.items())
        }
        # Other versions of the kernels are gone: what they measured helps nobody.
        devices[self._device] = {self._version: plain}
        text = json.dumps({"schema": SCHEMA, "devices": devices}, indent=1)
        try:
            write_whole(self._path, text.encode())
        except UserError:
            return False
        return True

    def _read(self) -> dict[str, Any]:
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                return {}
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) and found.get("schema") == SCHEMA else {}

    def _mine(self, whole: Mapping[str, Any]) -> dict[str, Measured]:
        found: Any = whole
        for key in ("devices", self._device, self._version):
            found = found.get(key, {}) if isinstance(found, Mapping) else {}
        read = {shape: _entry(value) for shape, value in found.items()} if isinstance(found, Mapping) else {}
        return {shape: entry for shape, entry in read.items() if entry is not None}


def _entry(value: Any) -> Measured | None:
    """None for what is no choice of ours."""
    if not isinstance(value, Mapping):
        return None
    tile, parts, seconds = value.get("tile"), value.get("parts"), value.get("seconds")
    if not isinstance(tile, str) or tile not in BY_NAME:
        return None
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= MAX_PARTS:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < _MAX_SECONDS:
        return None
    return Measured(Cut(BY_NAME[tile], parts), float(seconds))
